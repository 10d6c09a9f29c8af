"""A transaction coordinator that never fails, for the members that commit in transactions.

It decides at once and for ever. It sends the marker to the coordinator of the group until that
acknowledges it; messages between the two may be late or lost. A member that restarts gets the next
producer epoch, and its open transaction is aborted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from quorumlog.broker.groups.core.requests import CommitTransactionalOffsets, CompleteTransaction
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.timeline import Timeline
from quorumlog.chaos.simulation.worlds.groups.cluster import Cluster
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.transaction_markers import TransactionMarker

RESEND_US: Final = 400_000
DELAY_MAX_US: Final = 30_000
LOST: Final = 0.05  # the chance that a message is lost
SLOW: Final = 0.1  # the chance that the result of a verification is late
SLOW_MAX_US: Final = 2_000_000


@dataclass(slots=True)
class _Producer:
    """A producer. `connection`: the number of the connection for its marker."""

    epoch: int = 0
    is_open: bool = False
    marker: TransactionMarker | None = None  # not acknowledged yet
    connection: int = 0


class TransactionCoordinator:
    """Coordinates all producers of a run; `bumps_epoch`: a new epoch per transaction (v2)."""

    def __init__(
        self, timeline: Timeline, cluster: Cluster, rng: Rng, *, bumps_epoch: bool
    ) -> None:
        self.bumps_epoch: Final = bumps_epoch
        self._timeline: Final = timeline
        self._cluster: Final = cluster
        self._rng: Final = rng
        self._producers: Final[dict[int, _Producer]] = {}

    def is_idle(self) -> bool:
        """Return whether no transaction is open and every marker was acknowledged."""
        return not any(one.is_open or one.marker for one in self._producers.values())

    def init(self, producer_id: int) -> None:
        """Bump the epoch, and abort the open transaction of an earlier process."""
        producer = self._producers.setdefault(producer_id, _Producer())
        producer.epoch += 1
        if producer.is_open:
            self._end(producer_id, producer, commits=False)

    def begin(self, producer_id: int) -> int | None:
        """Begin a transaction; return its epoch, or None before the previous one has ended."""
        producer = self._producers[producer_id]
        if producer.marker is not None or producer.is_open:
            return None
        producer.is_open = not self.bumps_epoch  # else its first offsets open it
        return producer.epoch

    def end(self, producer_id: int, epoch: int, *, commits: bool) -> bool:
        """Decide the outcome; return whether the transaction is committed."""
        producer = self._producers[producer_id]
        if producer.epoch != epoch:
            return False
        producer.epoch += self.bumps_epoch
        if not producer.is_open:  # EndTxn without offsets fences a late commit (KIP-890)
            return False
        self._end(producer_id, producer, commits=commits)
        return commits

    def _end(self, producer_id: int, producer: _Producer, *, commits: bool) -> None:
        producer.is_open = False
        producer.marker = TransactionMarker(producer_id, producer.epoch, 0, commits)
        self._send(producer, producer.marker)

    def verify(
        self, request: CommitTransactionalOffsets, answer: Callable[[ErrorCode], None]
    ) -> None:
        """Verify a commit for a broker, and call `answer` a little later."""

        def asked() -> None:
            answered = partial(answer, self._verify(request))
            if self._rng.random() < SLOW:  # the client times out meanwhile
                self._timeline.push(self._rng.randrange(SLOW_MAX_US), answered)
            else:
                self._later(answered, may_be_lost=False)

        self._later(asked, may_be_lost=False)

    def _verify(self, request: CommitTransactionalOffsets) -> ErrorCode:
        producer = self._producers[request.producer_id]
        if request.producer_epoch != producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if producer.marker is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        producer.is_open = producer.is_open or request.adds
        return ErrorCode.NONE if producer.is_open else ErrorCode.TRANSACTION_ABORTABLE

    def _send(self, producer: _Producer, marker: TransactionMarker) -> None:
        """Send the marker now and every RESEND_US; a resend drops copies still in flight."""
        if producer.marker is not marker:
            return
        producer.connection += 1
        connection = producer.connection
        self._timeline.push(RESEND_US, partial(self._send, producer, marker))
        target = self._cluster.find_coordinator(self._rng)
        if target is None:
            return
        node, host = self._cluster.nodes[target], self._cluster.hosts[target]

        def answered(error_code: Any) -> None:
            if producer.marker is marker and error_code is ErrorCode.NONE:
                producer.marker = None

        def received() -> None:
            if producer.connection == connection:
                request = CompleteTransaction(marker=marker)
                host.ask(request, lambda code: self._later(partial(answered, code)))

        self._later(partial(node.take, received))

    def _later(self, action: Callable[[], None], *, may_be_lost: bool = True) -> None:
        delay_us, is_lost = self._rng.randrange(1, DELAY_MAX_US), self._rng.random() < LOST
        if not (is_lost and may_be_lost):
            self._timeline.push(delay_us, action)
