"""The brokers as clients see them: any of them says where a leader is, perhaps a former one."""

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

# An InitProducerId that is answered so gets no epoch. An abort that it asks for is its own cause.
CHANGES_NOTHING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)


class Reply(NamedTuple):
    """The answer of a coordinator.

    `came`: the number of the request as it came in. `coordinator`: which one got it, and nothing
    more. `is_of_leader`: no other broker was elected when it was given: an old coordinator may
    know nothing of what its successor has promised.
    """

    came: int
    coordinator: object
    is_of_leader: bool
    result: Result


class Cluster:
    """What clients see of the brokers."""

    def __init__(
        self,
        brokers: Mapping[int, TransactionBroker],
        messages: Messages,
        oracle: TransactionOracle,
        leads: Callable[[TopicPartition], int],
    ) -> None:
        """`leads` tells the leader that the controller knows."""
        self._leads: Final = leads
        self._brokers: Final = brokers
        self._messages: Final = messages
        self._oracle: Final = oracle

    def leader_of(self, at: TopicPartition, rng: Rng) -> TransactionBroker | None:
        """Return the leader as some broker knows it."""
        running = [one for one in self._brokers.values() if one.node.machine.is_up]
        partition = rng.choice(running).node.replicas.image.partition(at) if running else None
        return None if partition is None else self._brokers.get(partition.leader_id)

    def coordinator(self, rng: Rng) -> TransactionBroker | None:
        """Return the coordinator as some broker knows it."""
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
        """Ask a coordinator; `answered` gets a Reply."""
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
        """Send a batch; `answered` gets its ProduceResult."""

        def handle(reply: Answer) -> None:
            if leader is not None:
                leader.produce(at, records, reply, transactional_id=transactional_id, adds=adds)

        target = None if leader is None else leader.node
        self._messages.ask(source, target, handle, answered, may_come_late=may_come_late)
