"""Appends on the event loop: the timer of the waiting produces, the Futures of verifications."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.broker.deadline_timer import DeadlineTimer
from quorumlog.broker.partitions.io.transaction_verifier import TransactionVerifier
from quorumlog.broker.partitions.log.appends import Appends
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.broker.partitions.log.verified_appends import TransactionProducer, Verify
from quorumlog.clock import monotonic_ms
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition


class TimedAppends(Appends):
    """All produces of this broker, by the clock of the event loop."""

    def __init__(
        self, replicas: ReplicaSet, *, wall_ms: Callable[[], int], disk: DiskQueue
    ) -> None:
        self._timer: Final = DeadlineTimer(replicas.deadlines, self.expire)
        self.stop: Final = self._timer.stop
        super().__init__(
            replicas, now_ms=monotonic_ms, wall_ms=wall_ms, arm=self._timer.arm, disk=disk
        )


def verification_by(verifier: TransactionVerifier) -> Verify:
    """Return the `Verify` that awaits a verifier's Future."""

    def verify(
        producer: TransactionProducer,
        at: TopicPartition,
        *,
        topic_id: TopicId,
        adds: bool,
        answered: Callable[[ErrorCode | None], None],
    ) -> None:
        def done(outcomes: asyncio.Future[Mapping[TopicPartition, ErrorCode]]) -> None:
            is_known = not outcomes.cancelled() and outcomes.exception() is None
            answered(outcomes.result()[at] if is_known else None)

        answer = verifier.verify(producer, [at], topic_id=topic_id, adds=adds)
        answer.add_done_callback(done)

    return verify
