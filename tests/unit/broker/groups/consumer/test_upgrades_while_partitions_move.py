"""A group is upgraded while a classic member of it gives partitions up (KIP-429)."""

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.groups.consumer.classic import classic_beat, classic_join, classic_sync, some
from tests.support.groups.consumer.coordination import ConsumerCoordination, heartbeat, join
from tests.unit.broker.groups.consumer.test_mixed_groups import classic_group, rejoined

T0, T1 = some(0, 1)


def upgraded() -> tuple[ConsumerCoordination, int]:
    """a has two partitions, and its next generation leaves it one; then `new` makes the upgrade."""
    groups, _ = classic_group()
    groups.ask(classic_join("a", owned=(T0, T1)))
    joined = groups.answer(classic_join("b", owned=some(2, 3)))
    groups.ask(classic_sync("b", joined.generation_id))
    groups.answer(classic_sync("a", joined.generation_id, a=(T0,), b=some(2, 3)))
    groups.answer(join("new"))
    return groups, joined.generation_id


def of_the_new(groups: ConsumerCoordination) -> set[TopicPartition]:
    assigned = groups.group.members["new"].current.assigned
    return {TopicPartition("t", one.partition) for one in assigned}


def test_what_a_classic_member_gives_up_is_free_once_it_has_joined_without_it() -> None:
    groups, generation_id = upgraded()
    assert T1 not in of_the_new(groups)  # a may not have heard of it yet
    told = groups.answer(classic_beat("a", generation_id))
    assert told is ErrorCode.REBALANCE_IN_PROGRESS
    groups.answer(classic_join("a", owned=(T0, T1)))
    groups.beat(heartbeat("new", generation_id + 1))
    assert T1 not in of_the_new(groups)
    assert rejoined(groups, "a", T0) == (generation_id + 1, (T0,))
    groups.beat(heartbeat("new", generation_id + 1))
    assert T1 in of_the_new(groups)
    groups.check_replayed()


def test_a_classic_member_that_does_not_give_up_is_removed_after_its_rebalance_timeout() -> None:
    groups, generation_id = upgraded()
    groups.tick(499)
    assert "a" in groups.group.members
    groups.tick(1)
    groups.commit_writes()
    assert "a" not in groups.group.members
    groups.beat(heartbeat("new", generation_id + 1))
    assert {T0, T1} & of_the_new(groups)
    groups.check_replayed()
