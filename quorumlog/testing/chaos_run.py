"""The run of `@pytest.mark.chaos`: executed before the body of the test."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.history import HistorySource, read_history
from quorumlog.chaos.run.run_directory import SCHEDULE_FILE, VERDICT_FILE
from quorumlog.testing.judged import TestVerdict, judge, with_violations, write_report_of
from quorumlog.testing.marks import ChaosMark
from quorumlog.testing.trial import Trial

if TYPE_CHECKING:
    import pyarrow as pa


class ChaosRun:
    """The result of a run.

    A test that reads `verdict` judges it itself; any other test fails if the verdict is not valid.
    seed, store: the seed, and the directory of the run's files. digest: of all events of a
    simulated run; "" on real processes.
    """

    def __init__(self, *, seed: int, store: Path, verdict: TestVerdict, digest: str = "") -> None:
        self.seed: Final = seed
        self.store: Final = store
        self.digest: Final = digest
        self._verdict: Final = verdict
        self._is_looked_at = False

    @property
    def verdict(self) -> TestVerdict:
        """The verdict. `verdict.valid` is true only if all promises are proved."""
        self._is_looked_at = True
        return self._verdict

    @property
    def history(self) -> "pa.Table":
        """The clients' operations, as an Arrow table of one row per operation."""
        return read_history(self.store)

    @property
    def report(self) -> Path:
        """The file of the report; the first access writes it."""
        return write_report_of(HistorySource(self.store), self._verdict)

    def complaint(self) -> str | None:
        """Return an error if the verdict is not valid and the test has not read it."""
        if self._is_looked_at or self._verdict.valid:
            return None
        return "the chaos run is not valid"

    def __repr__(self) -> str:
        return f"<ChaosRun of seed {self.seed} in {self.store}>"


def carry_out(mark: ChaosMark, trial: Trial) -> ChaosRun:
    """Execute and judge the run of a test. Raises RunFailed, and the errors of `chaos.run.run`."""
    seed = trial.seed(mark.seed)
    chaos_run = _simulated(mark, trial, seed) if mark.simulated else _real(mark, trial, seed)
    trial.judges.append(chaos_run.complaint)
    return chaos_run


def _real(mark: ChaosMark, trial: Trial, seed: int) -> ChaosRun:
    from quorumlog.chaos.run.run import run

    trial.command = mark.command(seed)
    run(mark.settings(trial.store, seed), _no_progress)
    trial.verdict = verdict = judge(trial.store)
    return ChaosRun(seed=seed, store=trial.store, verdict=verdict)


def _simulated(mark: ChaosMark, trial: Trial, seed: int) -> ChaosRun:
    from quorumlog.chaos.node_simulation.forked import run_one

    trial.command = mark.simulation_command(seed)
    trial.store.mkdir(parents=True)
    settings = mark.simulation(trial.store, seed)
    (trial.store / SCHEDULE_FILE).write_text(settings.schedule.to_json(), encoding="utf-8")
    with warnings.catch_warnings():  # Python warns of a fork beside threads, here pyarrow's
        warnings.simplefilter("ignore", DeprecationWarning)
        result = run_one(settings)
    trial.verdict = verdict = with_violations(judge(trial.store), result.violations)
    document = {**verdict.as_json(), "digest": result.digest, "violations": result.violations}
    text = json.dumps(document, indent=2) + "\n"
    (trial.store / VERDICT_FILE).write_text(text, encoding="utf-8")
    return ChaosRun(seed=seed, store=trial.store, verdict=verdict, digest=result.digest)


def _no_progress(phase: str, fraction: float, figures: str) -> None:
    """Show nothing: pytest has the terminal."""
