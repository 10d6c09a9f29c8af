"""A static member that joins too late for a generation keeps its place, without partitions."""

from collections.abc import Sequence

import pytest

from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    RecordKey,
    RecordKind,
)
from quorumlog.broker.groups.core.records import GroupRecord, StoredGroup, StoredMember
from quorumlog.broker.groups.core.requests import JoinResult
from quorumlog.chaos.simulation.worlds.groups.consumer.joining import encode_assignment
from quorumlog.chaos.simulation.worlds.groups.consumer.oracle import Client
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import Load
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.simulation.test_consumer_group_oracle import GROUP, History, at, broken, some


class ClassicHistory(History):
    """The group is a classic one: C has partition 0 in generation 2. D joins."""

    def __init__(self, instance_id: str | None = "j") -> None:
        super().__init__()
        gone = [RecordKey(RecordKind.MEMBER, GROUP, name) for name in "ab"]
        for client in (self.a, self.b):
            self.oracle.leaves(client, for_a_while=False)
        tombstones = [RecordKey(RecordKind.GROUP, GROUP), *gone]
        self.append([ConsumerGroupRecord(subject=key, value=None) for key in tombstones])
        self.c = self.client("c", is_classic=True, instance_id=instance_id)
        self.d = self.client("d", is_classic=True)
        self.generation(2, c=(0,))
        self.syncs(self.c, 2, 0)
        self.host.clock_ms += 100
        self.oracle.served(self.c, self.moment())
        self.oracle.rests(self.c, self.moment())

    def generation(self, generation_id: int, **given: Sequence[int]) -> None:
        members = [
            StoredMember(member_id=name, assignment=encode_assignment(map(at, indexes)))
            for name, indexes in given.items()
        ]
        stored = StoredGroup(protocol_type="consumer", generation_id=generation_id, members=members)
        self.append([GroupRecord(group_id=GROUP, stored=stored)])

    def syncs(self, client: Client, generation_id: int, *indexes: int) -> None:
        named = frozenset(map(at, indexes))
        self.oracle.synced(client, generation_id, named, some(*indexes), is_replaced=False)

    def joins(self, client: Client, generation_id: int) -> None:
        result = JoinResult(
            error_code=ErrorCode.NONE, member_id=client.member_id, generation_id=generation_id
        )
        self.oracle.served(client, self.moment(), result)


def test_what_a_late_static_member_has_goes_to_another_one() -> None:
    history = ClassicHistory()
    history.host.clock_ms += 50
    history.generation(3, c=(), d=(0,))
    history.syncs(history.d, 3, 0)


def test_what_a_member_has_that_has_joined_does_not() -> None:
    history = ClassicHistory()
    history.host.clock_ms += 50
    history.joins(history.c, 3)
    history.generation(3, c=(), d=(0,))
    with broken("one-owner"):
        history.syncs(history.d, 3, 0)


def test_what_a_dynamic_member_has_does_not() -> None:
    history = ClassicHistory(instance_id=None)  # it would be left out
    history.host.clock_ms += 50
    history.generation(3, c=(), d=(0,))
    with broken("one-owner"):
        history.syncs(history.d, 3, 0)


def test_a_generation_that_another_shard_made_is_another_one() -> None:
    history = ClassicHistory()
    history.host.clock_ms += 50
    history.joins(history.c, 3)
    history.host.loads = {1: Load(serial=2, since_ms=0)}
    history.host.clock_ms += 50
    history.generation(3, c=(), d=(0,))
    history.syncs(history.d, 3, 0)


@pytest.mark.parametrize("generation_id", [1, 2])
def test_a_generation_that_is_no_newer_takes_nothing_away(generation_id: int) -> None:
    history = ClassicHistory()
    history.host.clock_ms += 50
    history.generation(generation_id, c=(0,), d=(0,))
    with broken("one-owner"):
        history.syncs(history.d, generation_id, 0)


def test_a_generation_waits_for_a_static_member_until_it_is_late() -> None:
    history = ClassicHistory()
    history.host.clock_ms += 49
    history.generation(3, c=(), d=(0,))
    with broken("passed-over-early"):
        history.syncs(history.d, 3, 0)
