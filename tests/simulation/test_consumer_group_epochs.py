"""The epochs that consumer group members receive, for its oracle: when they may fall."""

from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    RecordKey,
    RecordKind,
)
from quorumlog.broker.groups.core.records import GroupRecord, StoredGroup, StoredMember
from tests.simulation.test_consumer_group_oracle import GROUP, History, broken, some


def test_epochs_may_begin_again_for_a_member_that_was_removed() -> None:
    """Its group was deleted meanwhile; it joins by JoinGroup, under the id that it had."""
    history = History()
    classic = history.client("c", is_classic=True)

    def syncs(epoch: int, *, is_new: bool = False) -> None:
        if is_new:
            history.write(history.member("c"))
        history.gives("c", epoch)
        history.oracle.synced(classic, epoch, frozenset(), some(), is_replaced=False)

    syncs(9, is_new=True)
    history.host.clock_ms = 200
    history.removes("c")
    syncs(2, is_new=True)
    syncs(3)
    with broken("epoch-rises"):
        syncs(2)


def test_a_member_that_was_removed_may_hear_of_that_late() -> None:
    history = History()
    history.tells(history.a, 8)
    history.gives("a", 9)
    history.host.clock_ms = 200
    history.removes("a")
    history.oracle.told(history.a, 9, some(), is_replaced=False)  # the log had it before
    history.write(history.member("a"))
    history.tells(history.a, 2)
    with broken("epoch-rises"):
        history.oracle.told(history.a, 9, some(), is_replaced=False)


def test_a_member_that_is_erased_and_written_in_one_batch_begins_again() -> None:
    history = History()
    history.tells(history.a, 9)
    history.host.clock_ms = 200
    current = CurrentAssignmentValue(member_epoch=2)
    history.write(
        (RecordKind.MEMBER, "a", None),
        history.member("a"),
        (RecordKind.CURRENT_ASSIGNMENT, "a", current),
    )
    history.oracle.told(history.a, 2, some(), is_replaced=False)
    with broken("epoch-rises"):
        history.oracle.told(history.a, 9, some(), is_replaced=False)


def test_a_group_that_changes_its_protocol_goes_on_with_its_epochs() -> None:
    history = History()
    history.write((RecordKind.MEMBER, "b", None))
    history.oracle.leaves(history.b, for_a_while=False)
    history.tells(history.a, 9)
    member = StoredMember(member_id="a")
    stored = StoredGroup(protocol_type="consumer", generation_id=2, members=[member])
    tombstones = [RecordKey(RecordKind.GROUP, GROUP), RecordKey(RecordKind.MEMBER, GROUP, "a")]
    history.append(
        [
            *(ConsumerGroupRecord(subject=key, value=None) for key in tombstones),
            GroupRecord(group_id=GROUP, stored=stored),
        ]
    )
    with broken("epoch-rises"):
        history.oracle.synced(history.a, 2, frozenset(), some(), is_replaced=False)
