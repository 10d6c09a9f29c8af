"""Commits in transactions: who may make them, what is refused, what a load finds in the log."""

from dataclasses import replace

import pytest

from quorumlog.broker.groups.core.effects import VerifyTransaction
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.pending_offsets import PendingOffsets
from quorumlog.broker.groups.core.records import OffsetRecord, encode
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch, read_header, sealed
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.coordination.groups_begun import committed as with_offset
from tests.support.groups.coordination import SETTINGS, T0, T1, Coordination, commit, join, leave
from tests.support.groups.transactions import PRODUCER, end, outcome, txn_commit, verify, write


def offset(group: Coordination, where: TopicPartition = T0) -> int | None:
    committed = group.coordinator.fetch_offsets("g", [where])[where]
    return None if committed is None else committed.offset


def record(value: int | None, *, group_id: str = "g", where: TopicPartition = T0) -> Record:
    committed = None if value is None else CommittedOffset(offset=value)
    found = OffsetRecord(group_id=group_id, topic_partition=where, committed=committed)
    return Record(0, 0, *encode(found), ())


def batch(*records: Record, producer_id: int = PRODUCER, is_control: bool = False) -> bytes:
    return encode_batch(
        [one._replace(offset=index) for index, one in enumerate(records)],
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
        is_control=is_control,
    )


# Members.


def test_only_a_member_of_this_generation_commits() -> None:
    group = Coordination()
    generation = group.stable("a")
    for member_id, generation_id, instance, expected in (
        ("a", generation, None, ErrorCode.NONE),
        ("a", generation - 1, None, ErrorCode.ILLEGAL_GENERATION),
        ("a", generation + 1, None, ErrorCode.ILLEGAL_GENERATION),
        ("b", generation, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", -1, None, ErrorCode.ILLEGAL_GENERATION),
        ("", generation, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", generation, "i", ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        request = txn_commit(
            1, member_id=member_id, generation_id=generation_id, group_instance_id=instance
        )
        assert write(group, request) is expected, request


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    group = Coordination()
    generation = group.stable("a", instances=True)
    request = txn_commit(1, member_id="before", generation_id=generation, group_instance_id="i-a")
    assert write(group, request) is ErrorCode.FENCED_INSTANCE_ID
    assert write(group, replace(request, member_id="a")) is ErrorCode.NONE


def test_a_producer_that_names_no_member_commits_for_any_group() -> None:
    """Before v3, TxnOffsetCommit had no members; the group may be anything, as in Kafka."""
    group = Coordination()
    assert write(group, txn_commit(1)) is ErrorCode.NONE
    group.stable("a")
    assert group.coordinator.groups["g"].state is GroupState.STABLE
    assert write(group, txn_commit(2)) is ErrorCode.NONE


def test_a_member_commits_while_the_group_completes_its_rebalance() -> None:
    group = Coordination()
    group.ask(join(new_member_id="a"))
    group.tick(200)
    assert group.coordinator.groups["g"].state is GroupState.COMPLETING_REBALANCE
    generation = group.coordinator.groups["g"].generation_id
    request = txn_commit(1, member_id="a", generation_id=generation)
    assert write(group, request) is ErrorCode.NONE


def test_without_a_group_a_generation_makes_no_sense() -> None:
    group = Coordination()
    request = txn_commit(1, member_id="a", generation_id=1)
    assert write(group, request) is ErrorCode.ILLEGAL_GENERATION
    assert write(group, txn_commit(1)) is ErrorCode.NONE
    assert write(group, request) is ErrorCode.UNKNOWN_MEMBER_ID, "it has a pending offset"


def test_the_member_is_checked_when_the_transaction_is_verified_not_before() -> None:
    """The next generation may have begun while the transaction coordinator was asked."""
    group = Coordination()
    generation = group.stable("a")
    request_id = group.ask(txn_commit(1, member_id="a", generation_id=generation))
    group.ask(join("a", protocols=(("range", b"changed"),)))
    assert group.coordinator.groups["g"].generation_id > generation
    verify(group)
    assert outcome(group, request_id) is ErrorCode.ILLEGAL_GENERATION


# Transactions.


def test_a_transaction_is_verified_before_its_first_batch_and_not_again() -> None:
    group = Coordination()
    group.ask(txn_commit(1, adds=True))
    [asked] = verify(group)
    assert isinstance(asked, VerifyTransaction)
    assert asked.request.adds
    group.commit_writes()
    group.ask(txn_commit(2))
    assert group.own == []
    group.commit_writes()
    group.ask(end(commits=True))
    group.ask(txn_commit(3))
    assert len(group.own) == 1, "this is another transaction"


def test_a_newer_epoch_of_a_producer_and_what_follows_a_refused_batch_are_verified() -> None:
    group = Coordination()
    write(group, txn_commit(1))
    group.ask(txn_commit(2, producer_epoch=1))
    assert len(group.own) == 1
    group = Coordination()
    group.ask(txn_commit(1))
    verify(group)
    group.fail_write()
    group.ask(txn_commit(1))
    assert len(group.own) == 1


def test_a_coordinator_that_takes_over_knows_which_transactions_are_open() -> None:
    group = Coordination()
    write(group, txn_commit(1))
    successor = group.reloaded()
    successor.ask(txn_commit(2))
    assert successor.own == []
    successor.commit_writes()
    successor.ask(end(commits=True))
    successor.commit_writes()
    assert offset(successor) == 2


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_commit_that_is_not_verified_is_not_written(said: ErrorCode, told: ErrorCode) -> None:
    group = Coordination()
    request_id = group.ask(txn_commit(1))
    verify(group, said)
    assert (group.writes, outcome(group, request_id)) == ([], told)


def test_a_commit_that_its_producer_has_given_up_does_not_come_after_the_newer_one() -> None:
    group = Coordination()
    older = group.ask(txn_commit(1))
    [late] = [one for one in group.own if isinstance(one, VerifyTransaction)]
    group.own.clear()
    group.ask(txn_commit(2))
    verify(group)
    group.own.append(late)
    verify(group)
    group.commit_writes()
    assert outcome(group, older) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    group.ask(end(commits=True))
    group.commit_writes()
    assert offset(group) == 2


def test_bad_requests_are_refused_before_anybody_is_asked() -> None:
    group = Coordination()
    for request, expected in (
        (txn_commit(1, group_id=""), ErrorCode.INVALID_GROUP_ID),
        (txn_commit(1, group_id="x" * 40_000), ErrorCode.INVALID_GROUP_ID),
        (txn_commit(1, transactional_id=""), ErrorCode.INVALID_REQUEST),
        (txn_commit(1, -1), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (txn_commit(1, -(2**63)), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (txn_commit(1, producer_epoch=-1), ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        request_id = group.ask(request)
        assert outcome(group, request_id) is expected
    assert (group.own, group.writes) == ([], [])


def test_metadata_has_a_limit_and_a_commit_of_nothing_writes_nothing() -> None:
    group = Coordination()
    long = CommittedOffset(offset=1, metadata="x" * (SETTINGS.offset_metadata_max_bytes + 1))
    request = txn_commit(1)
    request_id = group.ask(replace(request, offsets={T0: long, T1: CommittedOffset(offset=2)}))
    verify(group)
    group.commit_writes()
    codes = {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE, T1: ErrorCode.NONE}
    assert group.replies[request_id].partitions == codes
    request_id = group.ask(replace(request, offsets={T0: long}))
    assert group.writes == []
    assert outcome(group, request_id) is ErrorCode.OFFSET_METADATA_TOO_LARGE


# Stability, and removal.


def test_only_the_partitions_of_a_transaction_are_unstable_from_append_to_marker() -> None:
    group = with_offset(1)
    unstable = group.coordinator.transactional.unstable
    group.ask(txn_commit(5, where=T1))
    assert unstable("g") == set()
    verify(group)
    assert unstable("g") == {T1}
    group.commit_writes()
    assert unstable("g") == {T1}
    assert unstable("h") == set()
    group.ask(end(commits=True))
    assert unstable("g") == {T1}
    group.commit_writes()
    assert unstable("g") == set()
    assert (offset(group), offset(group, T1)) == (1, 5)


def test_a_group_that_has_emptied_is_kept_for_its_pending_offsets() -> None:
    group = Coordination()
    generation = group.stable("a")
    group.answer(commit(1, "a", generation))
    write(group, txn_commit(5, where=T1, member_id="a", generation_id=generation))
    group.answer(leave("a"))
    group.tick(200_000)
    group.commit_writes()
    assert offset(group) is None, "it has expired: no transaction may change it"
    assert "g" in group.coordinator.committed.groups
    group.ask(end(commits=False))
    group.commit_writes()
    group.tick(200_000)
    group.commit_writes()
    assert group.coordinator.known_groups() == []


# What a load finds.


def test_transactions_of_many_producers_are_loaded_as_they_are_mixed() -> None:
    batches = [
        batch(record(1), record(2, where=T1), producer_id=1),
        batch(record(3), producer_id=2),
        encode_batch([record(4, where=T1)]),
        encode_marker(TransactionMarker(2, 0, 0, commits=True), 0),
        batch(record(5, group_id="h"), producer_id=3),
        encode_marker(TransactionMarker(3, 0, 0, commits=False), 0),
        encode_marker(TransactionMarker(1, 0, 0, commits=True), 0),
        batch(record(6), producer_id=2),
    ]
    group = Coordination(batches=batches)
    assert (offset(group), offset(group, T1)) == (3, 4)
    assert group.coordinator.fetch_offsets("h", None) == {}
    assert group.coordinator.transactional.unstable("g") == {T0}


def test_what_compaction_has_left_is_loaded() -> None:
    """Batches without their records, markers without their batches, batches without a marker."""
    marker = encode_marker(TransactionMarker(1, 0, 0, commits=True), 0)
    batches = [
        encode_marker(TransactionMarker(9, 0, 0, commits=True), 0),
        batch(record(1), producer_id=1),
        emptied_batch(marker),
        emptied_batch(batch(record(1), producer_id=4)),
        batch(Record(0, 0, None, b"no key", ()), record(2, where=T1), producer_id=1),
    ]
    group = Coordination(batches=batches)
    assert group.coordinator.transactional.unstable("g") == {T0, T1}
    group.ask(end(1, commits=True))
    group.commit_writes()
    assert (offset(group), offset(group, T1)) == (1, 2)


def emptied_batch(whole: bytes) -> bytes:
    """Return the batch as the cleaner leaves it when all its records are gone."""
    header = read_header(whole)
    fields = [*header[header._fields.index("crc") + 1 :]]
    fields[-1] = 0
    return sealed(header.base_offset, header.leader_epoch, fields, b"")


def test_a_tombstone_in_a_transaction_counts_at_once_as_in_kafka() -> None:
    group = Coordination(batches=[encode_batch([record(1)]), batch(record(None))])
    assert offset(group) is None


def test_a_record_of_another_kind_in_a_transaction_forbids_a_rewrite() -> None:
    foreign = Record(0, 0, b"\0\x63" + bytes(9), b"of another kind", ())
    assert Coordination(batches=[batch(foreign)]).coordinator.rewrite.has_foreign_records


def test_pending_offsets_are_equal_if_their_logs_say_the_same() -> None:
    some, other = PendingOffsets(), PendingOffsets()
    found = OffsetRecord(group_id="g", topic_partition=T0, committed=CommittedOffset(offset=1))
    some.add(1, 0, found, 5)
    assert some != other
    assert (some.first_log_offset, other.first_log_offset) == (5, None)
    other.add(1, 0, found, 5)
    assert some == other
    assert some != "pending"
