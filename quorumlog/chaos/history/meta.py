"""`meta.json` beside a history: one JSON object that explains the run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from quorumlog.chaos.history.model import HistoryError

META: Final = "meta.json"


def write_meta(directory: str | Path, meta: Mapping[str, object]) -> None:
    """Write `meta.json` with these facts about the run, replacing any older file."""
    text = json.dumps(dict(meta), indent=2, sort_keys=True, default=str)
    (Path(directory) / META).write_text(text + "\n", encoding="utf-8")


def read_meta(path: str | Path) -> dict[str, Any]:
    """Return `meta.json` of a run's directory, or of a history's directory; or {}."""
    directory = Path(path) if Path(path).is_dir() else Path(path).parent
    try:
        meta = json.loads((directory / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise HistoryError(f"{directory / META}: {error}") from error
    if not isinstance(meta, dict):
        raise HistoryError(f"{directory / META}: not a JSON object")
    return meta
