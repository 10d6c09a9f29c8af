"""Pure checkers: functions from a history to a verdict with witnesses.

`check_history` runs a checker in this process; `chaos.checking` distributes the same functions. It
is imported lazily: checks need numpy and pyarrow, which an installation may lack; the verdict
classes do not.
"""

from typing import TYPE_CHECKING

from quorumlog.chaos.checkers.verdict import CheckResult, Severity, Valid, Verdict

if TYPE_CHECKING:
    from quorumlog.chaos.checkers.registry import check_history

__all__ = ["CheckResult", "Severity", "Valid", "Verdict", "check_history"]


def __getattr__(name: str) -> object:
    if name != "check_history":
        raise AttributeError(f"module 'quorumlog.chaos.checkers' has no attribute {name!r}")
    from quorumlog.chaos.checkers.registry import check_history

    return check_history
