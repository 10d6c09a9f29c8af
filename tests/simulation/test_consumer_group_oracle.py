"""Each rule of the oracle of consumer groups, broken by hand beside a history that keeps it."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from quorumlog.broker.groups.core.consumer.partitions import Partitions, TopicIdPartition
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    MemberValue,
    RecordKey,
    RecordKind,
    TargetMemberValue,
    Value,
    to_assigned,
    to_stored,
)
from quorumlog.broker.groups.core.records import (
    GroupRecord,
    LogRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
    encode,
)
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.chaos.simulation.worlds.groups.consumer.group_log import GroupLog
from quorumlog.chaos.simulation.worlds.groups.consumer.joining import (
    Claim,
    assign_cooperatively,
    encode_assignment,
)
from quorumlog.chaos.simulation.worlds.groups.consumer.oracle import (
    Client,
    ConsumerOracle,
    MemberCommit,
)
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import Load, Moment
from quorumlog.chaos.simulation.worlds.groups.oracle import Position
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition

TOPIC_ID = TopicId(b"\0\1read..........")
GROUP = "group"
LOAD = Load(serial=1, since_ms=0)


def some(*indexes: int) -> Partitions:
    return frozenset(TopicIdPartition(TOPIC_ID, index) for index in indexes)


def at(index: int) -> TopicPartition:
    return TopicPartition("read", index)


class FakeHost:
    """The broker that leads in epoch 1."""

    node_id = 1

    def __init__(self) -> None:
        self.loads = {1: LOAD}
        self.clock_ms = 10

    def now_ms(self) -> int:
        return self.clock_ms


class History:
    """A log that is written by hand, and clients A and B; the group is at epoch 1."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.host, self.deleted = FakeHost(), set[str]()
        log = GroupLog(lambda: self.entries, {TOPIC_ID: "read"})
        hosts = cast("Any", {1: self.host})
        self.oracle = ConsumerOracle(log, hosts, self.deleted)
        self.a, self.b = self.client("a"), self.client("b", instance_id="i")
        self.write((RecordKind.GROUP, "", GroupValue(epoch=1)), self.member("a"), self.member("b"))

    def client(self, member_id: str, **changes: Any) -> Client:
        values = {"instance_id": None, "is_classic": False, "session_ms": 100, "rebalance_ms": 50}
        return self.oracle.begins(Client(member_id, **{**values, **changes}))

    def member(self, name: str, instance_id: str | None = None) -> tuple[RecordKind, str, Value]:
        return RecordKind.MEMBER, name, MemberValue(instance_id=instance_id)

    def write(self, *records: tuple[RecordKind, str, Value | None]) -> None:
        self.append(
            [
                ConsumerGroupRecord(subject=RecordKey(kind, GROUP, name), value=value)
                for kind, name, value in records
            ]
        )

    def append(self, records: Sequence[LogRecord]) -> None:
        for position, record in enumerate(records):
            key, value = encode(record)
            self.entries.append(Entry(1, value or b"", position, key=key))

    def gives(self, name: str, epoch: int, *indexes: int) -> None:
        stored = to_stored(some(*indexes))
        assigned = to_assigned(some(*indexes), dict.fromkeys(some(*indexes), 0))
        current = CurrentAssignmentValue(member_epoch=epoch, assigned_partitions=assigned)
        target = TargetMemberValue(topic_partitions=stored)
        self.write(
            (RecordKind.CURRENT_ASSIGNMENT, name, current), (RecordKind.TARGET_MEMBER, name, target)
        )

    def tells(self, client: Client, epoch: int, *indexes: int, is_replaced: bool = False) -> None:
        """Append it to the log, and let the client receive it."""
        self.gives(client.member_id, epoch, *indexes)
        self.oracle.told(client, epoch, some(*indexes), is_replaced=is_replaced)

    def moment(self) -> Moment:
        return Moment(1, LOAD, self.host.clock_ms)

    def removes(self, name: str) -> None:
        self.write((RecordKind.MEMBER, name, None), (RecordKind.CURRENT_ASSIGNMENT, name, None))
        self.oracle.served(self.b, self.moment())  # it reads on

    def commits(self, client: Client, tag: str, index: int = 0) -> MemberCommit:
        commit = MemberCommit(client.member_id, client.epoch, {at(index): Position(5, tag)})
        self.oracle.sends(commit)
        return commit

    def stores(self, tag: str, index: int = 0) -> None:
        committed = CommittedOffset(offset=5, metadata=tag)
        record = OffsetRecord(group_id=GROUP, topic_partition=at(index), committed=committed)
        self.append([record])


def broken(rule: str) -> "pytest.RaisesExc[Violation]":
    return pytest.raises(Violation, match=f"^{rule}: ")


def test_a_partition_is_handed_over_once_its_owner_has_given_it_up() -> None:
    history = History()
    history.tells(history.a, 1, 0, 1)
    history.tells(history.a, 1, 0)
    with broken("one-owner"):
        history.tells(history.b, 1, 1)
    history = History()
    history.tells(history.a, 1, 0, 1)
    history.tells(history.a, 1, 0)
    history.oracle.gives_up(history.a, history.a.surplus)
    history.tells(history.b, 1, 1)
    assert history.oracle.is_at_rest([history.a, history.b], some(0, 1))
    assert not history.oracle.is_at_rest([history.a, history.b], some(0, 1, 2))


def test_a_member_that_was_removed_owns_nothing_though_it_may_not_know() -> None:
    history = History()
    history.tells(history.a, 1, 0)
    history.host.clock_ms = 100
    history.removes("a")
    history.tells(history.b, 1, 0)
    history.write(history.member("a"))  # it joins by its old id, before it learns of its removal
    history.tells(history.b, 1, 0)


def test_a_member_is_removed_and_joins_again_in_one_batch() -> None:
    history = History()
    history.tells(history.a, 1, 0)
    history.host.clock_ms = 100
    history.write((RecordKind.MEMBER, "a", None), history.member("a"))
    history.tells(history.b, 1, 0)


def test_what_a_replaced_coordinator_tells_proves_nothing() -> None:
    history = History()
    history.tells(history.a, 1, 0, is_replaced=True)
    history.tells(history.b, 1, 0)


def test_what_members_are_told_is_committed() -> None:
    history = History()
    history.gives("a", 1, 0)
    with broken("told-committed"):
        history.oracle.told(history.a, 1, some(0, 1), is_replaced=False)
    with broken("told-committed"):
        history.oracle.told(history.a, 2, None, is_replaced=False)


def test_what_classic_members_are_told_is_committed() -> None:
    history = History()
    classic = history.client("c", is_classic=True)
    history.gives("c", 1, 0)
    history.oracle.synced(classic, 1, frozenset({at(0)}), some(0), is_replaced=False)
    with broken("told-committed"):
        history.oracle.synced(classic, 1, frozenset({at(1)}), some(1), is_replaced=False)


def test_epochs_rise() -> None:
    history = History()
    history.tells(history.a, 2)
    with broken("epoch-rises"):
        history.tells(history.a, 1)
    history = History()
    history.write((RecordKind.GROUP, "", GroupValue(epoch=1)))
    with broken("epoch-rises"):
        history.tells(history.a, 1)


def test_a_group_has_one_form() -> None:
    history = History()
    stored = StoredGroup(protocol_type="consumer", generation_id=2)
    history.append([GroupRecord(group_id=GROUP, stored=stored)])
    with broken("one-form"):
        history.tells(history.a, 1)


def test_a_member_is_removed_when_it_is_silent_for_a_session() -> None:
    history = History()
    history.oracle.served(history.a, history.moment())
    history.host.clock_ms = 109
    with broken("removed-early"):
        history.removes("a")
    history = History()
    history.oracle.served(history.a, history.moment())
    history.host.clock_ms = 110
    history.removes("a")


def test_a_member_is_removed_when_it_is_late_for_a_rebalance() -> None:
    for after_ms, is_due in ((49, False), (50, True)):
        history = History()
        history.host.clock_ms += 100
        history.oracle.read(history.a, history.moment())
        history.oracle.served(history.a, history.moment())
        history.host.clock_ms += after_ms
        history.oracle.read(history.a, history.moment())
        if is_due:
            history.removes("a")
        else:
            with broken("removed-early"):
                history.removes("a")


def test_a_member_that_has_nothing_to_do_is_not_late() -> None:
    history = History()
    history.host.clock_ms += 100
    history.oracle.read(history.a, history.moment())
    history.oracle.rests(history.a, history.moment())
    history.host.clock_ms += 60
    history.oracle.served(history.a, history.moment())
    with broken("removed-early"):
        history.removes("a")


def test_a_member_that_leaves_is_removed_at_once_and_one_that_is_away_is_not() -> None:
    history = History()
    for client in (history.a, history.b):
        history.oracle.served(client, history.moment())
    history.oracle.leaves(history.a, for_a_while=False)
    history.removes("a")
    history.tells(history.b, 1, 0)
    history.oracle.leaves(history.b, for_a_while=True)
    with broken("removed-early"):
        history.removes("b")


@pytest.mark.parametrize(("indexes", "is_back"), [((0, 1), True), ((0,), False)])
def test_a_static_member_that_is_back_has_what_it_had(
    indexes: tuple[int, ...], *, is_back: bool
) -> None:
    history = History()
    history.tells(history.b, 1, 0, 1)
    history.oracle.leaves(history.b, for_a_while=True)
    returned = history.client("b2", instance_id="i")
    history.write(
        (RecordKind.MEMBER, "b", None), history.member("b2", "i")
    )  # in one batch: it is replaced
    if is_back:
        history.tells(returned, 1, *indexes)
        assert returned.has == some(0, 1)
    else:
        with broken("own-place"):
            history.tells(returned, 1, *indexes)


def test_only_a_member_of_the_consumer_protocol_keeps_another_out() -> None:
    history = History()
    successor = history.client("b2", instance_id="i")
    history.oracle.read(history.b, history.moment())
    history.oracle.kept_out(successor)
    classic = history.client("c", instance_id="i", is_classic=True)
    history.oracle.read(classic, history.moment())
    history.oracle.served(classic, history.moment(), is_replaced=True)
    history.oracle.kept_out(successor)  # a broker that leads no more took the classic member
    history.oracle.served(classic, history.moment())
    with broken("kept-out"):
        history.oracle.kept_out(successor)
    history.oracle.read(history.b, history.moment())  # a late request may have taken the place
    history.oracle.kept_out(successor)


def test_a_commit_is_of_a_member_that_has_the_partition_since_its_epoch() -> None:
    history = History()
    history.tells(history.a, 1, 0)
    commit = history.commits(history.a, "kept")
    history.stores("kept")
    history.oracle.acknowledge(commit)
    history.commits(history.a, "since")
    history.commits(history.a, "stale", index=1)
    history.gives("a", 2, 0, 1)
    history.stores("since")  # it has had partition 0 since epoch 1, and 1 since epoch 2
    history.oracle.acknowledge(commit)
    history.stores("stale", index=1)
    with broken("stale-commit"):
        history.oracle.acknowledge(commit)


def test_a_member_that_had_a_partition_before_another_one_has_it_anew() -> None:
    history = History()
    history.tells(history.a, 1, 0)
    history.commits(history.a, "late")
    history.tells(history.a, 2)
    history.oracle.gives_up(history.a, history.a.surplus)
    history.tells(history.b, 2, 0)
    history.oracle.leaves(history.b, for_a_while=False)
    history.removes("b")
    history.gives("a", 3, 0)
    history.stores("late")
    with broken("stale-commit"):
        history.oracle.finish({})


def test_a_classic_member_commits_at_its_very_generation() -> None:
    history = History()
    history.write(history.member("c"))
    classic = history.client("c", is_classic=True)
    history.gives("c", 1, 0)
    history.oracle.synced(classic, 1, frozenset({at(0)}), some(0), is_replaced=False)
    history.commits(classic, "old")
    history.gives("c", 2, 0)
    history.stores("old")
    with broken("stale-commit"):
        history.oracle.finish({})


def test_a_member_that_was_removed_commits_no_more() -> None:
    history = History()
    history.tells(history.a, 1, 0)
    history.commits(history.a, "late")
    history.oracle.leaves(history.a, for_a_while=False)
    history.removes("a")
    history.stores("late")
    with broken("stale-commit"):
        history.oracle.finish({})


def test_what_is_acknowledged_is_committed_and_found() -> None:
    history = History()
    history.tells(history.a, 1, 0)
    first, second = history.commits(history.a, "first"), history.commits(history.a, "second")
    with broken("acked-committed"):
        history.oracle.acknowledge(first)
    history.stores("first")
    history.stores("second")
    history.oracle.acknowledge(second)
    wanted = history.oracle.acknowledged()
    history.oracle.fetched({at(0): Position(5, "second")}, wanted, is_replaced=False)
    history.oracle.fetched({}, wanted, is_replaced=True)
    for shown in ({}, {at(0): Position(5, "first")}):
        with broken("offset-lost"):
            history.oracle.fetched(shown, wanted, is_replaced=False)
    history.deleted.add("read")
    history.oracle.finish({})


def test_what_is_shown_is_committed_and_of_no_open_transaction() -> None:
    history = History()
    history.tells(history.a, 1, 0)
    with broken("fetched-committed"):
        history.oracle.fetched({at(0): Position(5, "nowhere")}, {}, is_replaced=False)
    commit = history.commits(history.a, "pending")
    history.oracle.began(commit)
    history.stores("pending")
    with broken("transaction-shown"):
        history.oracle.finish({at(0): Position(5, "pending")})
    history.oracle.decided(commit)
    history.oracle.finish({at(0): Position(5, "pending")})


def test_a_classic_group_rests_when_the_log_says_what_its_members_have() -> None:
    history = History()
    classic = history.client("c", is_classic=True)
    member = StoredMember(member_id="c", assignment=encode_assignment([at(0)]))
    stored = StoredGroup(protocol_type="consumer", generation_id=3, members=[member])
    history.oracle.leaves(history.a, for_a_while=False)
    history.oracle.leaves(history.b, for_a_while=False)
    gone = [RecordKey(RecordKind.MEMBER, GROUP, name) for name in "ab"]
    tombstones = [RecordKey(RecordKind.GROUP, GROUP), *gone]
    history.append(
        [
            *(ConsumerGroupRecord(subject=key, value=None) for key in tombstones),
            GroupRecord(group_id=GROUP, stored=stored),
        ]
    )
    history.oracle.synced(classic, 3, frozenset({at(0)}), some(0), is_replaced=False)
    assert history.oracle.is_at_rest([classic], some(0))


def test_the_leader_gives_no_member_what_another_one_has() -> None:
    topics = frozenset({"read"})
    claims = {
        "new": Claim(topics, frozenset(), -1),
        "old": Claim(topics, frozenset(map(at, range(4))), 1),
    }
    first = assign_cooperatively(claims, {"read": 4, "other": 2})
    assert first == {"old": {at(0), at(1)}, "new": set()}
    claims["old"] = Claim(topics, frozenset(first["old"]), 2)
    second = assign_cooperatively(claims, {"read": 4, "other": 2})
    assert second == {"old": {at(0), at(1)}, "new": {at(2), at(3)}}


def test_the_leader_has_something_for_a_member_that_comes_last() -> None:
    topics, counts = frozenset({"read"}), {"read": 9}
    owned = {name: frozenset(map(at, range(3 * i, 3 * i + 3))) for i, name in enumerate("abc")}
    claims = {name: Claim(topics, has, 1) for name, has in owned.items()}
    claims["new"] = Claim(topics, frozenset(), -1)
    first = assign_cooperatively(claims, counts)
    assert {name: len(has) for name, has in first.items()} == {"a": 3, "b": 2, "c": 2, "new": 0}
    assert all(first[name] <= has for name, has in owned.items())
    claims = {name: Claim(topics, frozenset(has), 2) for name, has in first.items()}
    second = assign_cooperatively(claims, counts)
    assert second == {**first, "new": {at(5), at(8)}}
