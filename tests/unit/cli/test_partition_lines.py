"""The line of one partition, for people."""

import pytest

from quorumlog.cli.status_lines import partition_line


@pytest.mark.parametrize(
    ("leader", "elr", "last_known", "expected"),
    [
        (3, [], [], ""),
        (3, [4], [2], "  may lack records: [2]"),
        (3, None, None, ""),
        (-1, [4, 2], [], "  waits for one of brokers [4, 2]"),
        (-1, [], [3, 4], "  may lack records: [3, 4]  waits for all of brokers [3, 4]"),
        (-1, None, None, ""),
    ],
)
def test_a_partition_without_a_leader_names_the_brokers_that_it_waits_for(
    leader: int, elr: list[int] | None, last_known: list[int] | None, expected: str
) -> None:
    partition = {
        "leader": leader,
        "leader_epoch": 7,
        "isr": [],
        "replicas": [2, 3, 4],
        "elr": elr,
        "last_known_elr": last_known,
    }
    start = f"   1  leader {leader}  epoch 7  isr []  replicas [2, 3, 4]"
    assert partition_line(1, partition) == start + expected
