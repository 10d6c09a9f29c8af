"""The brokers as clients reach them: any of them names a leader, perhaps an outdated one."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from quorumlog.broker.transactions.core.requests import InitProducerId, Request, Result
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.brokers.shard_host import Answer
from quorumlog.chaos.simulation.worlds.transactions.messages import Messages, Party
from quorumlog.chaos.simulation.worlds.transactions.oracle import TransactionOracle
from quorumlog.chaos.simulation.worlds.transactions.requests import error_code_of
from quorumlog.chaos.simulation.worlds.transactions.transaction_broker import (
    STATE,
    TransactionBroker,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

# An InitProducerId with such an error gets no epoch. An abort that it starts is its own cause.
CHANGES_NOTHING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)


class Reply(NamedTuple):
    """The response of a coordinator.

    `came`: the number of the request, by arrival. `coordinator`: the identity of its receiver.
    `is_of_leader`: no other broker had been elected before the response: an old coordinator may
    lack the changes of its successor.
    """

    came: int
    coordinator: object
    is_of_leader: bool
    result: Result


class Cluster:
    """The brokers that clients send requests to."""

    def __init__(
        self,
        brokers: Mapping[int, TransactionBroker],
        messages: Messages,
        oracle: TransactionOracle,
        leads: Callable[[TopicPartition], int],
    ) -> None:
        """`leads` returns the leader in the controller's image."""
        self._leads: Final = leads
        self._brokers: Final = brokers
        self._messages: Final = messages
        self._oracle: Final = oracle

    def leader_of(self, at: TopicPartition, rng: Rng) -> TransactionBroker | None:
        """Return the leader in the image of some broker, perhaps outdated."""
        running = [one for one in self._brokers.values() if one.node.machine.is_up]
        partition = rng.choice(running).node.replicas.image.partition(at) if running else None
        return None if partition is None else self._brokers.get(partition.leader_id)

    def coordinator(self, rng: Rng) -> TransactionBroker | None:
        """Return the coordinator in the image of some broker, perhaps outdated."""
        return self.leader_of(STATE, rng)

    def ask(
        self,
        source: Party,
        coordinator: TransactionBroker | None,
        request: Request,
        answered: Answer,
        *,
        may_come_late: bool,
    ) -> None:
        """Send a request to a coordinator; `answered` receives a Reply, or None."""
        init = request.expected if isinstance(request, InitProducerId) else None

        def handle(reply: Answer) -> None:
            serving = None if coordinator is None else coordinator.serving
            came = self._oracle.came_in(request.transactional_id, init, serving)
            if coordinator is not None:
                node_id = coordinator.node.node_id

                def answer(result: Any) -> None:
                    if init is not None and error_code_of(result) in CHANGES_NOTHING:
                        self._oracle.gave_nothing(request.transactional_id, came)
                    reply(Reply(came, serving, self._leads(STATE) == node_id, result))

                coordinator.ask(request, answer)

        target = None if coordinator is None else coordinator.node
        self._messages.ask(source, target, handle, answered, may_come_late=may_come_late)

    def produce(
        self,
        source: Party,
        leader: TransactionBroker | None,
        at: TopicPartition,
        records: bytes,
        answered: Answer,
        *,
        transactional_id: str,
        adds: bool,
        may_come_late: bool = True,
    ) -> None:
        """Send a batch; `answered` receives its ProduceResult, or None."""

        def handle(reply: Answer) -> None:
            if leader is not None:
                leader.produce(at, records, reply, transactional_id=transactional_id, adds=adds)

        target = None if leader is None else leader.node
        self._messages.ask(source, target, handle, answered, may_come_late=may_come_late)
