"""The command that installs a missing extra, for the way in which quorumlog was installed."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

_DISTRIBUTION = "quorumlog"


def install_command(extra: str) -> str:
    """Return the `pip install` line that adds `extra` to this installation.

    For an installation from a directory (PEP 610's direct_url.json names it), the line names that
    directory, because no index may have the package.
    """
    return f"pip install '{_source()}[{extra}]'"


def _source() -> str:
    try:
        text = distribution(_DISTRIBUTION).read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}").get("url", ""))
    except (PackageNotFoundError, ValueError, AttributeError):
        return _DISTRIBUTION
    return unquote(url.path) if url.scheme == "file" and url.path else _DISTRIBUTION
