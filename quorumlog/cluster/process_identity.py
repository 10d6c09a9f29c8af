"""The identity of a process: its process id, and when it started.

The system reuses a process id some time after its process has ended. The start time distinguishes
the two processes.
"""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
_PS_TIMEOUT_S: Final = 5.0
_STATE, _THREADS, _START_TIME = 0, 17, 19  # fields of /proc/PID/stat behind the command's name


def started(pid: int) -> str | None:
    """Return the start time of a process, as a text to compare, or None without such a process.

    An ended process counts as gone, even if its parent has not waited for it yet. While one of its
    threads has yet to end, it still holds its ports and files: its first thread is a zombie then.
    """
    if not _PROC.joinpath("self", "stat").exists():
        return _started_by_ps(pid)
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    has_ended = fields[_STATE] == "X" or (fields[_STATE] == "Z" and int(fields[_THREADS]) <= 1)
    return None if has_ended else f"{_boot_id()}:{fields[_START_TIME]}"


def is_paused(pid: int) -> bool:
    """Return whether a process is stopped by a signal (SIGSTOP): state T."""
    if not _PROC.joinpath("self", "stat").exists():
        return _ask_ps(pid).startswith("T")
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[_STATE] == "T"
    except (OSError, UnicodeDecodeError, IndexError):
        return False


def is_running(pid: int, start: str) -> bool:
    """Return whether the process with this id and start time still runs."""
    return started(pid) == start


@cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _started_by_ps(pid: int) -> str | None:
    state, _, start = _ask_ps(pid).partition(" ")
    return None if not start or state.startswith("Z") else start.strip()


def _ask_ps(pid: int) -> str:
    """Return state and start time from `ps`, as macOS has no /proc; "": `ps` shows no process."""
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        answer = subprocess.run(  # noqa: S603 - fixed words and a number
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()
