"""The workload of the world `transactions`: producers, readers, and coordinators that fail."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Final

from quorumlog.broker.transactions.core.coordinator import TransactionCoordinator
from quorumlog.broker.transactions.core.records import TransactionMetadata, TransactionRecord
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.broker.transactions.core.settings import TransactionSettings
from quorumlog.broker.transactions.core.states import WITHOUT_TRANSACTION, TransactionState
from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.simulation.kernel.options import Options
from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.chaos.simulation.worlds.brokers.world import BrokersWorld
from quorumlog.chaos.simulation.worlds.transactions.administrator import Administrator
from quorumlog.chaos.simulation.worlds.transactions.cluster import Cluster
from quorumlog.chaos.simulation.worlds.transactions.messages import Messages
from quorumlog.chaos.simulation.worlds.transactions.oracle import TransactionOracle
from quorumlog.chaos.simulation.worlds.transactions.producer import Producer
from quorumlog.chaos.simulation.worlds.transactions.reader import Reader
from quorumlog.chaos.simulation.worlds.transactions.requests import ProducerSettings
from quorumlog.chaos.simulation.worlds.transactions.transaction_broker import (
    STATE,
    TransactionBroker,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.topic_names import TRANSACTIONS_TOPIC

NEVER_MS: Final = 1_000_000  # longer than any run
PRODUCERS_MAX: Final = 4


def draw_transaction_options(rng: Rng, nodes: int) -> tuple[int, dict[str, Option]]:
    """Draw the options of a run: `nodes` brokers, then one machine for each client."""
    producers = rng.randrange(1, PRODUCERS_MAX + 1)
    level = rng.choice((0, 1, 2, 2, 2))
    options: dict[str, Option] = {
        "nodes": nodes,
        "partitions": 1,
        "data_partitions": rng.randrange(1, 4),
        "min_insync_replicas": min(2, nodes),
        "producers": producers,
        "transactional_ids": rng.randrange(1, producers + 1),
        "transaction_version": level,
        "modern_producers": rng.randrange(producers + 1) if rng.random() < 0.3 else producers,
        "timeout_ms": rng.choice((800, 2_000, 6_000)),
        "expiration_ms": rng.choice((4_000, NEVER_MS, NEVER_MS)),
        "first_epoch": rng.choice((-1, -1, 32_700, 32_762, 32_765)),  # -1: the ids are new
        "has_administrator": rng.random() < 0.4,
        "careless_producers": rng.random() < 0.3,
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
    }
    options["deletes_topic"] = rng.random() < 0.25
    # After a long timeout, a response may reach a coordinator that was replaced and leads again.
    options["marker_timeout_us"] = rng.choice((1_200_000, 1_200_000, 1_200_000, 6_000_000))
    options["has_stragglers"] = rng.random() < 0.3
    return nodes + producers + 1, options


TOPIC: Final = "records"
VOLATILE: Final = "passing"  # it is deleted and re-created
FIRST_PRODUCER_ID: Final = 1000  # from the controller; producer ids of before the run are lower


def data_places(schedule: Schedule) -> list[TopicPartition]:
    """Return the partitions that transactions write to."""
    options = Options(schedule)
    places = [TopicPartition(TOPIC, index) for index in range(options.number("data_partitions"))]
    return [*places, TopicPartition(VOLATILE, 0)] if options.flag("deletes_topic") else places


class Transactions:
    """A Workload. Every broker can be the coordinator; every client has a machine of its own."""

    topic = TRANSACTIONS_TOPIC

    def __init__(self, schedule: Schedule, rules: TransactionRules = SOUND) -> None:
        self._options: Final = Options(schedule)
        self.volatile = VOLATILE if self._options.flag("deletes_topic") else None
        self._seed: Final = schedule.seed
        self._rules: Final = rules
        self._places: Final = data_places(schedule)
        first = self._options.number("nodes") + 1
        self._administrator_id: Final = first + self._options.number("producers")
        self.machine_ids = tuple(range(first, self._administrator_id + 1))
        self._hosts: Final[dict[int, TransactionBroker]] = {}
        self._brokers: BrokersWorld
        self._oracle: TransactionOracle
        self._producers: list[Producer]
        self._administrator: Administrator
        self._readers: list[Reader]

    def clients(self, brokers: BrokersWorld) -> list[Producer]:
        """Return the producers; add a coordinator host to each broker."""
        self._brokers, options = brokers, self._options
        environment = brokers.environment
        self._oracle = TransactionOracle(
            brokers.oracle.committed,
            self._places,
            brokers.oracle.topics,
            clocks_ms=self._clocks_ms,
            expiration_ms=options.number("expiration_ms"),
        )
        has_stragglers = options.flag("has_stragglers")
        rng = seeded("stragglers", self._seed) if has_stragglers else None
        messages = Messages(environment.network, rng)
        settings = [*self._producer_settings()]
        self._place_coordinators(messages, settings)
        cluster = Cluster(self._hosts, messages, self._oracle, self._leads)
        self._producers = [*self._new_producers(cluster, settings)]
        machine = environment.machines[self._administrator_id]
        machine.process = self._administrator = Administrator(
            machine,
            cluster,
            self._oracle,
            rng=seeded("administrator", self._seed),
            producers=settings,
            places=self._places,
            is_calm=lambda: environment.is_calm or not options.flag("has_administrator"),
        )
        self._readers = [
            Reader(
                at,
                brokers.nodes,
                self._oracle,
                environment,
                seeded(f"reader {at}", self._seed),
            )
            for at in self._places
        ]
        for reader in self._readers:
            environment.timeline.push(0, reader.run)
        return self._producers

    def _place_coordinators(self, messages: Messages, settings: list[ProducerSettings]) -> None:
        """Add a coordinator host to each broker."""
        next_producer_id = partial(next, count(FIRST_PRODUCER_ID))
        for node_id, node in self._brokers.nodes.items():
            host = TransactionBroker(
                node,
                self._hosts,
                messages,
                self._brokers.environment.network,
                new_coordinator=self._new_coordinator,
                next_producer_id=next_producer_id,
                markers_may_come_late=all(one.version == 2 for one in settings),
                marker_timeout_us=self._options.number("marker_timeout_us"),
                places=self._places,
            )
            self._hosts[node_id] = host
            node.coordinators.append(host)

    def _new_producers(
        self, cluster: Cluster, settings: list[ProducerSettings]
    ) -> Iterator[Producer]:
        """Yield the producers, each on its machine."""
        for machine_id, one in zip(self.machine_ids, settings, strict=False):
            machine = self._brokers.environment.machines[machine_id]
            producer = Producer(
                machine,
                cluster,
                self._oracle,
                self._brokers.oracle,
                one,
                rng=seeded(f"producer {machine_id}", self._seed),
                places=self._places,
            )
            machine.process = producer
            yield producer

    def _producer_settings(self) -> Iterator[ProducerSettings]:
        """Yield the settings of each producer; several may share a transactional id."""
        options = self._options
        ids, level = options.number("transactional_ids"), options.number("transaction_version")
        for index in range(options.number("producers")):
            is_modern = index < options.number("modern_producers")
            version = 2 if level == 2 and is_modern else int(is_modern)
            yield ProducerSettings(
                transactional_id=f"id {index % ids}",
                version=version,
                timeout_ms=options.number("timeout_ms"),
                is_careless=options.flag("careless_producers"),
                may_come_late=version == 2,
            )

    def _new_coordinator(self) -> TransactionCoordinator:
        """Return a coordinator before it loads its log, with the ids from before the run."""
        options = self._options
        settings = TransactionSettings(
            transactional_id_expiration_ms=options.number("expiration_ms")
        )
        level = options.number("transaction_version")
        coordinator = TransactionCoordinator(settings, level, self._rules)
        epoch = options.number("first_epoch")
        for index in range(options.number("transactional_ids") if epoch >= 0 else 0):
            metadata = TransactionMetadata(
                producer_id=index + 1,
                producer_epoch=epoch,
                transaction_timeout_ms=options.number("timeout_ms"),
                state=TransactionState.EMPTY,
                last_update_ms=0,
            )
            record = TransactionRecord(transactional_id=f"id {index}", metadata=metadata)
            coordinator.replay(record)
        return coordinator

    def _clocks_ms(self) -> list[int]:
        return [node.machine.now_ms() for node in self._brokers.nodes.values()]

    def _leads(self, at: TopicPartition) -> int:
        partition = self._brokers.controller.controller.cluster.partition(*at)
        return -1 if partition is None else partition.leader_id

    def awaited(self) -> str:
        """Check the visible records, once all is decided and every reader is at the end."""
        if not all(one.is_idle for one in self._producers):
            return "the producers to end their transactions"
        if not self._oracle.is_decided():
            return "markers to decide every transaction"
        host = self._hosts.get(self._leads(STATE))
        coordinator = (
            ErrorCode.NOT_COORDINATOR if host is None else host.hosted.coordinator_at(STATE)
        )
        if isinstance(coordinator, ErrorCode):
            return f"a coordinator that has loaded: {coordinator.name}"
        for transactional_id, transaction in coordinator.transactions.items():
            if transaction.pending is not None or transaction.state not in WITHOUT_TRANSACTION:
                return f"{transactional_id!r} to end: it is {transaction.state.name}"
        committed = self._brokers.oracle.committed
        for at, reader in zip(self._places, self._readers, strict=True):
            place = self._oracle.place_of(at)
            if place is None or (reader.place, reader.position) != (place, len(committed[place])):
                return f"the reader of {at} to come to the end"
        self._oracle.finish()
        return ""
