"""The run that `@pytest.mark.chaos` asks for: carried out before the body of the test."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.history import read_history
from quorumlog.chaos.run import RunSummary, run
from quorumlog.testing.judged import TestVerdict, judge, write_report_of
from quorumlog.testing.marks import ChaosMark
from quorumlog.testing.trial import Trial

if TYPE_CHECKING:
    import pyarrow as pa


class ChaosRun:
    """What became of a run on real processes.

    A test that asks for `verdict` judges it itself; any other fails if the verdict is not valid.
    """

    def __init__(
        self, *, seed: int, store: Path, verdict: TestVerdict, summary: RunSummary
    ) -> None:
        self.seed: Final = seed
        self.store: Final = store
        self.summary: Final = summary
        self._verdict: Final = verdict
        self._is_looked_at = False

    @property
    def verdict(self) -> TestVerdict:
        """The verdict. `verdict.valid` is true only if all promises are proved kept."""
        self._is_looked_at = True
        return self._verdict

    @property
    def history(self) -> "pa.Table":
        """What the clients saw, as an Arrow table."""
        return read_history(self.store)

    @property
    def report(self) -> Path:
        """The file of the report; it is written when it is first asked for."""
        return write_report_of(self.store, self._verdict)

    def complaint(self) -> str | None:
        """Say that the verdict is not valid, unless the test has looked at it."""
        if self._is_looked_at or self._verdict.valid:
            return None
        return "the chaos run is not valid"

    def __repr__(self) -> str:
        return f"<ChaosRun of seed {self.seed} in {self.store}>"


def carry_out(mark: ChaosMark, trial: Trial) -> ChaosRun:
    """Carry out the run of a test and judge it. Raises what `chaos.run.run` raises."""
    seed = trial.seed(mark.seed)
    trial.command = mark.command(seed)
    summary = run(mark.settings(trial.store, seed), _no_progress)
    trial.verdict = verdict = judge(trial.store)
    chaos_run = ChaosRun(seed=seed, store=trial.store, verdict=verdict, summary=summary)
    trial.judges.append(chaos_run.complaint)
    return chaos_run


def _no_progress(phase: str, fraction: float, figures: str) -> None:
    """Show nothing: pytest has the terminal."""
