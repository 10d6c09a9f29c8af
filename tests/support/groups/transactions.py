"""Requests of transactional producers, and the verdicts of a transaction coordinator."""

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import VerifyTransaction
from quorumlog.broker.groups.core.requests import (
    CommitResult,
    CommittedOffset,
    CommitTransactionalOffsets,
    CompleteTransaction,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.coordination.driven_shard import DrivenShard
from tests.support.groups.coordination import T0

PRODUCER = 7


def txn_commit(
    offset: int, producer_id: int = PRODUCER, *, where: TopicPartition = T0, **changes: object
) -> CommitTransactionalOffsets:
    values: dict[str, object] = {
        "group_id": "g",
        "transactional_id": f"t{producer_id}",
        "producer_id": producer_id,
        "producer_epoch": 0,
        "adds": False,
        "offsets": {where: CommittedOffset(offset=offset)},
    }
    return CommitTransactionalOffsets(**{**values, **changes})  # type: ignore[arg-type]


def end(producer_id: int = PRODUCER, *, commits: bool, epoch: int = 0) -> CompleteTransaction:
    marker = TransactionMarker(producer_id, epoch, 0, commits)
    return CompleteTransaction(marker=marker, transaction_version=0)


def verify(
    driven: DrivenShard[GroupCoordinator], error_code: ErrorCode = ErrorCode.NONE
) -> list[VerifyTransaction]:
    """Answer all questions to transaction coordinators; return them."""
    asked = [effect for effect in driven.own if isinstance(effect, VerifyTransaction)]
    driven.own = [effect for effect in driven.own if effect not in asked]
    for effect in asked:
        event = events.TransactionVerified(
            request_id=effect.request_id, request=effect.request, error_code=error_code
        )
        driven.step(event)
    return asked


def write(driven: DrivenShard[GroupCoordinator], request: CommitTransactionalOffsets) -> ErrorCode:
    """Commit in a transaction that is open; return the outcome for T0."""
    request_id = driven.ask(request)
    verify(driven)
    driven.commit_writes()
    return outcome(driven, request_id)


def outcome(driven: DrivenShard[GroupCoordinator], request_id: int) -> ErrorCode:
    result = driven.replies[request_id]
    assert isinstance(result, CommitResult)
    return result.partitions.get(T0, result.error_code)
