"""Missing extras: the reason to show, and the command that installs them."""

import json
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final
from urllib.parse import unquote, urlsplit

_DISTRIBUTION: Final = "quorumlog"
_OF_CHECKS: Final = ("numpy", "pyarrow")
_OF_SEEDS: Final = ("pydantic", "yaml")


def why_no_checks() -> str:
    """Return why histories cannot be recorded and checked here, with the command that helps.

    "" if the required packages are installed.
    """
    return why_no_packages("histories and checks need")


def why_no_seeds() -> str:
    """Return why a cluster cannot begin with a seed here, with the command; "" if it can."""
    return why_no_packages("a seed needs", _OF_SEEDS, "seed")


def why_no_packages(needs: str, packages: Iterable[str] = _OF_CHECKS, extra: str = "chaos") -> str:
    """Return `needs`, the first package that is missing, and the command that installs its extra.

    "" if all are installed.
    """
    for name in packages:
        if find_spec(name) is None:
            return f"{needs} {name}: {install_command(extra)}"
    return ""


def install_command(extra: str) -> str:
    """Return the `pip install` line that adds `extra` to this installation.

    For an installation from a directory (recorded in PEP 610's direct_url.json), the line has that
    directory, because the package may not be in an index.
    """
    return f"pip install '{_source()}[{extra}]'"


def _source() -> str:
    try:
        from importlib.metadata import distribution  # takes 0.5 MB, and few programs lack an extra

        text = distribution(_DISTRIBUTION).read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}").get("url", ""))
    except (ImportError, OSError, ValueError, AttributeError):  # it is not installed, or unreadable
        return _DISTRIBUTION
    return unquote(url.path) if url.scheme == "file" and url.path else _DISTRIBUTION
