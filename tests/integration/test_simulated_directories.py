"""Whole nodes with two log directories each, one of which fails or is emptied: nothing is lost."""

from typing import Final

import pytest

from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.invariants import InvariantViolation

pytestmark = pytest.mark.integration

CONFIG: Final = {"log.dirs": "/data,/disk2"}
FAULTS: Final = {"disk_error", "kill", "wipe", "kill_all", "restart"}


def run(seed: int) -> NodesResult:
    return simulate_nodes(seed, duration_ms=8000, config=CONFIG, faults=FAULTS)


@pytest.mark.parametrize("seed", [1, 4, 7])
def test_a_directory_that_fails_or_is_emptied_costs_nothing(seed: int) -> None:
    result = run(seed)
    assert (result.violations, result.anomalies) == ((), ())


def test_directories_do_fail_in_these_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InvariantViolation("a directory has failed")

    monkeypatch.setattr(LogDirectories, "fail", fail)
    told = (str(violation) for seed in (1, 4, 7) for violation in run(seed).violations)
    assert any("a directory has failed" in one for one in told)
