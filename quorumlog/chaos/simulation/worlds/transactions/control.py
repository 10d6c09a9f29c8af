"""The requests of a producer to its coordinator, one at a time, repeated until answered."""

from collections.abc import Callable
from typing import Any, Final

from quorumlog.broker.transactions.core.requests import Request
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.transactions.cluster import Cluster, Reply
from quorumlog.chaos.simulation.worlds.transactions.instances import Asking, Instance
from quorumlog.chaos.simulation.worlds.transactions.messages import Party
from quorumlog.chaos.simulation.worlds.transactions.oracle import TransactionOracle
from quorumlog.chaos.simulation.worlds.transactions.requests import error_code_of
from quorumlog.chaos.simulation.worlds.transactions.transaction_broker import TransactionBroker
from quorumlog.wire.codec.error_codes import ErrorCode

BACKOFF_US: Final = 50_000

RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the topic is about to be re-created
    }
)
ELSEWHERE: Final = RETRIABLE - {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
Answered = Callable[[Reply, ErrorCode], None]
"""Called with the last reply, and its first error code."""


class Control:
    """The control requests of one producer. A new request replaces the one under way."""

    def __init__(
        self,
        party: Party,
        cluster: Cluster,
        oracle: TransactionOracle,
        rng: Rng,
        *,
        may_come_late: bool,
    ) -> None:
        self._party: Final = party
        self._cluster: Final = cluster
        self._oracle: Final = oracle
        self._rng: Final = rng
        self._may_come_late: Final = may_come_late
        self._coordinator: TransactionBroker | None = None
        self._number = 0  # of the request under way

    def forget(self) -> None:
        """Drop the request under way, and the coordinator."""
        self._number += 1
        self._coordinator = None

    def ask(self, instance: Instance, request: Request, answered: Answered) -> None:
        """Send a request until its error code is not `RETRIABLE`."""
        self._number += 1
        self._ask(self._number, self._oracle.asks(instance), instance, request, answered)

    def _ask(
        self, number: int, asking: Asking, instance: Instance, request: Request, answered: Answered
    ) -> None:
        if number != self._number:
            return
        if self._coordinator is None:
            self._coordinator = self._cluster.coordinator(self._rng)

        def heard(reply: Any) -> None:
            if number != self._number:
                return
            code = ErrorCode.NOT_COORDINATOR if reply is None else error_code_of(reply.result)
            if code is ErrorCode.NONE:
                self._oracle.granted(instance, asking, request, reply.came)
            if code not in RETRIABLE:
                answered(reply, code)
                return
            if code in ELSEWHERE:
                self._coordinator = None
            again = self._oracle.asks(instance)
            after_us = self._rng.randrange(BACKOFF_US // 5, 2 * BACKOFF_US)
            self._party.machine.later(
                after_us, self._party.take, self._ask, number, again, instance, request, answered
            )

        self._cluster.ask(
            self._party,
            self._coordinator,
            request,
            heard,
            may_come_late=self._may_come_late,
        )
