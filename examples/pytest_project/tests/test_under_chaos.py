"""Quorumlog's own workload, while nodes die and stand still: the cluster keeps its promises."""

import pytest

from quorumlog.testing import ChaosRun


@pytest.mark.chaos(faults=["kill", "pause"], duration="6s", seed=3, options={"rate": 100})
def test_acknowledged_records_survive() -> None:
    """The run comes before the body, and the test fails unless its verdict is valid."""


@pytest.mark.chaos(faults=[], duration="5s", seed=7, mutant="spoils-reads", options={"rate": 300})
def test_a_cluster_that_spoils_what_it_serves_is_found_out(chaos_run: ChaosRun) -> None:
    assert chaos_run.verdict.valid is False
    assert chaos_run.report.exists()


@pytest.mark.chaos(simulated=True, faults=["kill", "pause"], duration="30s", seed=1)
def test_thirty_virtual_seconds_of_whole_nodes(chaos_run: ChaosRun) -> None:
    assert chaos_run.verdict.valid
    assert len(chaos_run.digest) == 32  # the same seed gives the same one, on any machine
