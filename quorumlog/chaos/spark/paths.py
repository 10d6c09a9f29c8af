"""Paths as Spark writes them: only Spark reads `hdfs://...`, every process `file:///...`."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def is_remote(path: str | Path) -> bool:
    """Return whether only Spark can read `path`: it has a scheme other than `file`."""
    return bool(_SCHEME.match(str(path))) and urlsplit(str(path)).scheme != "file"


def local_path(path: str | Path) -> Path:
    """Return the path in the file system of a path that is not remote."""
    text = str(path)
    if not text.startswith("file:/"):
        return Path(path)
    return Path(unquote(urlsplit(text).path))
