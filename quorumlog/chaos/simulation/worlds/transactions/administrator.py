"""An administrator that fences producers, and a stranger with guessed producer epochs."""

from collections.abc import Callable
from typing import Final

from quorumlog.broker.transactions.core.requests import (
    InitProducerIdResult,
    ProducerIdAndEpoch,
    Request,
)
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.transactions.cluster import Cluster, Reply
from quorumlog.chaos.simulation.worlds.transactions.inbox import Inbox
from quorumlog.chaos.simulation.worlds.transactions.instances import Instance
from quorumlog.chaos.simulation.worlds.transactions.oracle import TransactionOracle
from quorumlog.chaos.simulation.worlds.transactions.requests import (
    ProducerSettings,
    error_code_of,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

EVERY_US: Final = 500_000  # the mean time between two requests


class Administrator:
    """A Process. It fences by InitProducerId, as `fenceProducers` of Kafka's admin client does."""

    def __init__(
        self,
        machine: Machine,
        cluster: Cluster,
        oracle: TransactionOracle,
        *,
        rng: Rng,
        producers: list[ProducerSettings],
        places: list[TopicPartition],
        is_calm: Callable[[], bool],
    ) -> None:
        """`is_calm`: from then on it sends no requests."""
        self.machine: Final = machine
        self._cluster: Final = cluster
        self._oracle: Final = oracle
        self._rng: Final = rng
        self._producers: Final = producers
        self._places: Final = places
        self._is_calm: Final = is_calm
        self._inbox: Final = Inbox(machine, str)
        self.take: Final = self._inbox.take
        self._names = 0

    def boot(self) -> None:
        """Start the process and its timer."""
        self._inbox.clear()
        self._wait()

    def stopped(self, *, loses_power: bool) -> None:
        """Do nothing: the process has no state to lose."""

    def resumed(self) -> None:
        """Run the steps that arrived during the pause."""
        self._inbox.resume()

    def _wait(self) -> None:
        self.machine.later(self._rng.randrange(1, 2 * EVERY_US), self.take, self._act)

    def _act(self) -> None:
        if self._is_calm():
            return
        settings = self._rng.choice(self._producers)
        if self._rng.random() < 0.25:
            self._fence(settings)
        else:
            self._guess(settings)
        self._wait()

    def _fence(self, settings: ProducerSettings) -> None:
        self._ask(settings, settings.init(), lambda _: None)

    def _guess(self, settings: ProducerSettings) -> None:
        producer = self._oracle.stranger(settings.transactional_id)
        if producer is None:
            return
        request = self._guessed(settings, producer)

        def granted(came: int) -> None:
            self._oracle.stranger_granted(producer, type(request).__name__, came)

        self._ask(settings, request, granted)

    def _guessed(self, settings: ProducerSettings, producer: ProducerIdAndEpoch) -> Request:
        requests: list[Request] = [
            settings.end(producer, commits=True),
            settings.end(producer, commits=False),
            settings.add(producer, [self._rng.choice(self._places)]),
            settings.init(producer),
        ]
        return self._rng.choice(requests)

    def _ask(
        self, settings: ProducerSettings, request: Request, granted: Callable[[int], None]
    ) -> None:
        """Send a request; a granted InitProducerId begins an instance as for any producer."""
        self._names += 1
        name = f"<{self.machine.node_id}.{self._names}>"
        instance = Instance(settings.transactional_id, name, settings.timeout_ms)
        asking = self._oracle.asks(instance)

        def answered(reply: Reply | None) -> None:
            if reply is None or error_code_of(reply.result) is not ErrorCode.NONE:
                return
            granted(reply.came)
            if isinstance(reply.result, InitProducerIdResult):
                self._oracle.granted(instance, asking, request, reply.came)
                self._oracle.initialized(instance, reply.result.producer, reply.came)

        coordinator = self._cluster.coordinator(self._rng)
        late = settings.may_come_late
        self._cluster.ask(self, coordinator, request, answered, may_come_late=late)
