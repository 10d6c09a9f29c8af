"""A broker reports the leaders that leave its fetches unanswered."""

from types import SimpleNamespace
from typing import Any, cast

from quorumlog.broker.following.io.replica_fetchers import ReplicaFetchers
from quorumlog.wire.codec.identifiers import BrokerId


def test_a_leader_counts_as_unanswering_if_any_of_its_lanes_waits() -> None:
    fetchers = ReplicaFetchers(cast(Any, None), {})
    assert fetchers.unanswering() == ()
    waits = {(3, 0): False, (3, 1): True, (2, 0): True, (2, 1): True, (4, 0): False}
    for (leader_id, number), waited in waits.items():
        lane = SimpleNamespace(is_unanswered=lambda waited=waited: waited)
        fetchers._fetchers[BrokerId(leader_id), number] = cast(Any, lane)
    assert fetchers.unanswering() == (2, 3)
