"""The verdict on the history of a test."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, cast

from quorumlog.chaos.checkers import CheckResult, Severity, Valid, Verdict
from quorumlog.chaos.history import HistorySource
from quorumlog.testing.trial import WORDS


class _Unknown(str):
    """The value "unknown": false, so that `assert verdict.valid` fails."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


UNKNOWN: Final = cast(Valid, _Unknown("unknown"))


class TestVerdict(Verdict):
    """A verdict for tests: `valid` is truthy only if it is True.

    pytest prints its repr for a failed assertion.
    """

    __test__ = False  # pytest must not collect it

    @property
    def anomalies(self) -> tuple[str, ...]:
        """The names of the anomalies, root causes first."""
        return tuple(result.name for result in self.results)

    def __repr__(self) -> str:
        found = ", ".join(f"{result.name} {result.count}" for result in self.results)
        return "; ".join(filter(None, (WORDS[str(self.valid)], found, *self.unknown_because)))


def judge(store: Path) -> TestVerdict:
    """Check the history in this directory, and write the verdict beside it.

    A report is written, too, unless the verdict is valid. Raises HistoryError.
    """
    from quorumlog.chaos.run.run_directory import keep_verdict
    from quorumlog.chaos.verify import verify_history

    source = HistorySource(store)
    verdict = for_test(verify_history(source, engine="local"))
    keep_verdict(store, verdict)
    if verdict.valid is not True:
        write_report_of(source, verdict)
    return verdict


def for_test(verdict: Verdict) -> TestVerdict:
    """Return the verdict as a TestVerdict."""
    values: dict[str, Any] = {each.name: getattr(verdict, each.name) for each in fields(verdict)}
    if values["valid"] == UNKNOWN:
        values["valid"] = UNKNOWN
    return TestVerdict(**values)


def with_violations(verdict: TestVerdict, violations: Sequence[str]) -> TestVerdict:
    """Return a verdict that includes the rules violated by simulated nodes."""
    if not violations:
        return verdict
    found = [
        CheckResult(name=f"violated: {rule}", severity=Severity.INVALID, count=1)
        for rule in violations
    ]
    return replace(verdict, valid=False, results=[*found, *verdict.results])


def write_report_of(source: HistorySource, verdict: Verdict) -> Path:
    """Write the report of a history into its directory; return its path."""
    from quorumlog.chaos.report import write_report
    from quorumlog.chaos.run.run_directory import REPORT_FILE

    return write_report(source, verdict, source.directory / REPORT_FILE)
