"""The error code of each request whose record could not be appended, as in Apache Kafka 4.3.

CoordinatorOperationExceptionHelper and GroupMetadataManager.appendGroupMetadataErrorToResponseError
map the errors of group requests, TransactionStateManager those of transactions: all in one way.
"""

from collections.abc import Callable
from typing import Any

import pytest

from quorumlog.broker.groups.core.requests import DeleteGroup, DeleteOffsets
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.coordination.driven_shard import DrivenShard
from tests.support.groups import coordination as groups
from tests.support.groups.consumer import coordination as consumer_groups
from tests.support.groups.consumer.classic import classic_join, classic_leave
from tests.support.groups.transactions import txn_commit, verify
from tests.support.transactions import coordination as transactions

Driven = DrivenShard[Any]
Asked = tuple[Driven, int]  # the id of a request whose record is being appended
NOT_WRITTEN = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
# The record may be in the log, so the coordinator reads its log again. Kafka's code is
# COORDINATOR_NOT_AVAILABLE for the second and the third; a client looks for the coordinator again
# in either case.
UNKNOWN_OUTCOME = dict.fromkeys(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ),
    ErrorCode.NOT_COORDINATOR,
)


def sync_group() -> Asked:
    driven = groups.Coordination()
    driven.ask(groups.join(new_member_id="a"))
    driven.tick(200)
    return driven, driven.ask(groups.sync("a", 1, a=b"large"))


def join_group_of_a_returning_static_member() -> Asked:
    driven = groups.Coordination()
    driven.stable("a", instances=True)
    return driven, driven.ask(groups.join(new_member_id="a2", group_instance_id="i-a"))


def offset_commit() -> Asked:
    driven = groups.Coordination()
    return driven, driven.ask(groups.commit(5))


def txn_offset_commit() -> Asked:
    driven = groups.Coordination()
    request_id = driven.ask(txn_commit(5))
    verify(driven)
    return driven, request_id


def offset_delete() -> Asked:
    driven = groups.Coordination()
    driven.answer(groups.commit(5))
    return driven, driven.ask(DeleteOffsets(group_id="g", partitions=(groups.T0,)))


def delete_groups() -> Asked:
    driven = groups.Coordination()
    driven.answer(groups.commit(5))
    return driven, driven.ask(DeleteGroup(group_id="g"))


def consumer_group_heartbeat() -> Asked:
    driven = consumer_groups.ConsumerCoordination()
    return driven, driven.ask(consumer_groups.join("a"))


def consumer_group_heartbeat_that_converts_a_classic_group() -> Asked:
    driven = consumer_groups.ConsumerCoordination()
    driven.answer(groups.commit(5))
    joining = driven.ask(classic_join("", new_member_id="a"))
    driven.tick(250)
    generation_id = driven.replies[joining].generation_id
    driven.answer(groups.sync("a", generation_id))
    return driven, driven.ask(consumer_groups.join("b"))


def join_group_in_a_consumer_group() -> Asked:
    driven = consumer_groups.ConsumerCoordination()
    driven.beat(consumer_groups.join("a"))
    return driven, driven.ask(classic_join("b"))


def leave_group_in_a_consumer_group() -> Asked:
    driven = consumer_groups.ConsumerCoordination()
    driven.beat(consumer_groups.join("a"))
    driven.beat(consumer_groups.join("b"))
    return driven, driven.ask(classic_leave("a"))


def delete_groups_of_a_consumer_group() -> Asked:
    driven = consumer_groups.ConsumerCoordination()
    driven.beat(consumer_groups.join("a"))
    driven.beat(consumer_groups.heartbeat("a", -1))
    return driven, driven.ask(DeleteGroup(group_id="g"))


def init_producer_id() -> Asked:
    driven = transactions.Coordination()
    return driven, driven.ask(transactions.init())


def add_partitions_to_txn() -> Asked:
    driven = transactions.Coordination()
    return driven, driven.ask(transactions.add(driven.begun(), transactions.T0))


def add_offsets_to_txn() -> Asked:
    driven = transactions.Coordination()
    return driven, driven.ask(transactions.add_offsets(driven.begun()))


def end_txn() -> Asked:
    driven = transactions.Coordination()
    return driven, driven.ask(transactions.commit(driven.opened(transactions.T0)))


REQUESTS = (
    sync_group,
    join_group_of_a_returning_static_member,
    offset_commit,
    txn_offset_commit,
    offset_delete,
    delete_groups,
    consumer_group_heartbeat,
    consumer_group_heartbeat_that_converts_a_classic_group,
    join_group_in_a_consumer_group,
    leave_group_in_a_consumer_group,
    delete_groups_of_a_consumer_group,
    init_producer_id,
    add_partitions_to_txn,
    add_offsets_to_txn,
    end_txn,
)


def codes_of(answer: Any) -> set[ErrorCode]:
    """Return the codes of an answer: its own, and those of its partitions."""
    if isinstance(answer, ErrorCode):
        return {answer}
    own = getattr(answer, "error_code", ErrorCode.NONE)
    parts = getattr(answer, "partitions", {})
    return {own, *parts.values()} - {ErrorCode.NONE}


@pytest.mark.parametrize(
    ("appended", "expected"), (NOT_WRITTEN | UNKNOWN_OUTCOME).items(), ids=lambda code: code.name
)
@pytest.mark.parametrize("ask", REQUESTS, ids=lambda ask: ask.__name__)
def test_the_code_of_an_append_that_failed(
    ask: Callable[[], Asked], appended: ErrorCode, expected: ErrorCode
) -> None:
    driven, request_id = ask()
    assert request_id not in driven.replies, "the answer waits for the record"
    assert len(driven.writes) == 1
    driven.end_write(appended)
    assert codes_of(driven.replies[request_id]) == {expected}
