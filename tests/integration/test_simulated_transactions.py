"""Transactions in whole simulated nodes: what is promised holds, and planted bugs are found."""

import pytest

from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import simulate_nodes

pytestmark = pytest.mark.integration
FAULTS = ("kill", "pause", "drop_request", "reply_lost")  # those of transactions among the requests


def run(seed: int, workload: str, mutant: str | None = None) -> NodesResult:
    return simulate_nodes(seed, duration_ms=6_000, workload=workload, faults=FAULTS, mutant=mutant)


@pytest.mark.parametrize(
    ("seed", "workload"), [(1, "txn_append"), (1, "consume_transform_produce"), (5, "txn_transfer")]
)
def test_transactions_survive_kills_and_lost_requests(seed: int, workload: str) -> None:
    result = run(seed, workload)
    assert (result.valid, result.violations) == (True, ()), result.anomalies
    assert result.operations > 200


@pytest.mark.parametrize(
    ("mutant", "workload", "anomaly"),
    [
        ("shows_open_transactions", "txn_append", "G1b"),
        ("hides_aborted_transactions", "txn_append", "G1a"),
        ("commits_what_is_aborted", "txn_append", "G1a"),
        ("keeps_offsets_of_the_aborted", "consume_transform_produce", "unconsumed"),
    ],
)
def test_a_planted_bug_is_found(mutant: str, workload: str, anomaly: str) -> None:
    result = run(0, workload, mutant)
    assert result.valid is False
    assert anomaly in result.anomalies
