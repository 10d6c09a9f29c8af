"""Pure: functions from a history to a verdict with witnesses.

`check_history` runs them all, in process; `quorumlog.chaos.spark` distributes the same functions.
"""

from quorumlog.chaos.checkers.check import check_history
from quorumlog.chaos.checkers.verdict import CheckResult, Severity, Valid, Verdict

__all__ = ["CheckResult", "Severity", "Valid", "Verdict", "check_history"]
