"""Finds runs below a directory and reads their small files; the history stays unread."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quorumlog.chaos.history.files import JSON_LINES, PARQUET
from quorumlog.chaos.history.meta import META
from quorumlog.chaos.run.run_directory import (
    CLUSTER_DIRECTORY,
    REPORT_FILE,
    SCHEDULE_FILE,
    VERDICT_FILE,
)

_DEPTH_MAX: Final = 3  # below the store: DIR/run, DIR/test-name/run, DIR/project/test-name/run
_FILES: Final = (VERDICT_FILE, REPORT_FILE, META, SCHEDULE_FILE, JSON_LINES, PARQUET)
_LOGS: Final = "*.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run of the store. `name` is its path below the store, "." if the store is a run itself.

    verdict: the object of verdict.json, {} before the check. unreadable: why one of its files could
    not be read, or "".
    """

    name: str
    directory: Path
    meta: Mapping[str, Any]
    verdict: Mapping[str, Any]
    files: tuple[str, ...]  # below `directory`, in the order in which they are shown
    modified_s: float
    unreadable: str = ""

    @property
    def state(self) -> str:
        """One of: valid, invalid, unknown, not judged."""
        known = {True: "valid", False: "invalid", "unknown": "unknown"}
        valid = self.verdict.get("valid")
        return known.get(valid, "not judged") if isinstance(valid, bool | str) else "not judged"

    @property
    def broken(self) -> dict[str, int]:
        """The anomalies that made the verdict invalid, with their counts."""
        anomalies = self.verdict.get("anomalies")
        found = anomalies.items() if isinstance(anomalies, dict) else ()
        return {
            str(name): int(result.get("count", 0))
            for name, result in found
            if isinstance(result, dict) and result.get("severity") == "invalid"
        }

    @property
    def started(self) -> str:
        """When the run began, from its meta.json, or ""."""
        return str(self.meta.get("started_at", ""))


def find_runs(store: Path) -> list[StoredRun]:
    """Return the runs below `store`, the newest first. Raises NotADirectoryError."""
    if not store.is_dir():
        raise NotADirectoryError(f"{store}: no such directory")
    runs = [_read(store, directory) for directory in _run_directories(store, _DEPTH_MAX)]
    return sorted(runs, key=lambda run: (run.modified_s, run.name), reverse=True)


def find_run(store: Path, name: str) -> StoredRun | None:
    """Return the run of this name, or None if the store has none."""
    directory = (store / name).resolve()
    if not directory.is_relative_to(store.resolve()) or not _is_run(directory):
        return None
    return _read(store.resolve(), directory)


def _run_directories(directory: Path, depth: int) -> Iterator[Path]:
    if _is_run(directory):
        yield directory
    elif depth:
        for below in sorted(directory.iterdir()):
            if below.is_dir() and not below.is_symlink():
                yield from _run_directories(below, depth - 1)


def _is_run(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (JSON_LINES, PARQUET, META))


def _read(store: Path, directory: Path) -> StoredRun:
    meta, meta_problem = _read_object(directory / META)
    verdict, verdict_problem = _read_object(directory / VERDICT_FILE)
    present = [name for name in _FILES if (directory / name).is_file()]
    logs = sorted((directory / CLUSTER_DIRECTORY).rglob(_LOGS))
    present += [str(log.relative_to(directory)) for log in logs]
    return StoredRun(
        name=str(directory.relative_to(store)),
        directory=directory,
        meta=meta,
        verdict=verdict,
        files=tuple(present),
        modified_s=max((directory / name).stat().st_mtime for name in present),
        unreadable=meta_problem or verdict_problem,
    )


def _read_object(file: Path) -> tuple[dict[str, Any], str]:
    """Return the JSON object in `file`, and why it cannot be read; an absent file is {}."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{file.name}: {error}"
    return (found, "") if isinstance(found, dict) else ({}, f"{file.name}: not a JSON object")


def matching(runs: Sequence[StoredRun], *, state: str, text: str) -> list[StoredRun]:
    """Return the runs of this state ("" takes all) whose description holds every word of `text`."""
    words = text.lower().split()
    return [
        run
        for run in runs
        if state in ("", run.state) and all(word in _described(run) for word in words)
    ]


def _described(run: StoredRun) -> str:
    return f"{run.name} {json.dumps(run.meta, default=str)} {' '.join(run.broken)}".lower()
