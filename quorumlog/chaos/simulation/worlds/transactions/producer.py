"""A transactional producer on a machine of its own, as a Process and a Client.

A fenced producer acts as a zombie for a while: it sends more requests before it begins anew.
"""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Final

from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    EndTransactionResult,
    InitProducerIdResult,
    ProducerIdAndEpoch,
    Request,
)
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.brokers.oracle import ReplicationOracle
from quorumlog.chaos.simulation.worlds.transactions.buggy_producer import Carelessness
from quorumlog.chaos.simulation.worlds.transactions.cluster import Cluster, Reply
from quorumlog.chaos.simulation.worlds.transactions.control import Control
from quorumlog.chaos.simulation.worlds.transactions.inbox import Inbox
from quorumlog.chaos.simulation.worlds.transactions.instances import Instance, Transaction
from quorumlog.chaos.simulation.worlds.transactions.oracle import TransactionOracle
from quorumlog.chaos.simulation.worlds.transactions.partition_batches import (
    ABORTABLE,
    PartitionBatches,
    Writing,
)
from quorumlog.chaos.simulation.worlds.transactions.requests import ProducerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

GIVE_UP_US: Final = 2_500_000  # then a transaction without all acknowledgements is aborted
CHANGES_ITS_MIND: Final = 0.15  # share of transactions aborted while batches are under way
CHANGE_US: Final = 200_000
PAUSE_US: Final = 50_000  # between two transactions
ZOMBIE_US: Final = 800_000  # before a fenced producer begins anew
COMMITS: Final = 0.75
ADDS_IN_STEPS: Final = 0.3
BATCHES_MAX: Final = 2
RECORDS_MAX: Final = 2

FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)


class _Phase(Enum):
    BEGINNING = auto()  # without an epoch, or before the next one
    READY = auto()
    ADDING = auto()
    WRITING = auto()
    COMMITTING = auto()
    ABORTING = auto()
    FENCED = auto()


class Producer:
    """Writes transactions, one after the other."""

    def __init__(
        self,
        machine: Machine,
        cluster: Cluster,
        oracle: TransactionOracle,
        replication: ReplicationOracle,
        settings: ProducerSettings,
        *,
        rng: Rng,
        places: list[TopicPartition],
    ) -> None:
        self.machine: Final = machine
        self.acknowledged = 0  # commits
        self._cluster: Final = cluster
        self._oracle: Final = oracle
        self._replication: Final = replication
        self._settings: Final = settings
        self._rng: Final = rng
        self._places: Final = places
        self._inbox: Final = Inbox(machine, self.describe)
        self.take: Final = self._inbox.take
        self._control: Final = Control(
            self, cluster, oracle, rng, may_come_late=settings.may_come_late
        )
        self._carelessness: Final = Carelessness(
            self, cluster, oracle, rng, is_on=settings.is_careless
        )
        self._names = 0  # of instances and transactions: each is unique
        self._is_stopped = False
        self._forget()

    def _forget(self) -> None:
        self._phase = _Phase.BEGINNING
        self._producer = NO_PRODUCER
        self._instance = self._new_instance()
        self._transaction: Transaction | None = None
        self._batches: dict[TopicPartition, PartitionBatches] = {}
        self._not_added: dict[TopicPartition, PartitionBatches] = {}  # yet
        self._sequences: dict[TopicPartition, int] = {}
        self._is_careless = False  # its careless batch may have been appended
        self._control.forget()
        self._inbox.clear()

    def _new_name(self) -> str:
        self._names += 1
        return f"<{self.machine.node_id}.{self._names}>"

    def _new_instance(self) -> Instance:
        settings = self._settings
        return Instance(settings.transactional_id, self._new_name(), settings.timeout_ms)

    # --- the process ---

    def boot(self) -> None:
        """Start with nothing in memory."""
        self._forget()
        self._begin_anew()

    def stopped(self, *, loses_power: bool) -> None:
        """Do nothing: the coordinator aborts the open transaction after its timeout."""

    def resumed(self) -> None:
        """Run the steps that arrived during the pause."""
        self._inbox.resume()

    def run(self) -> None:
        """Do nothing: `boot` has sent the first InitProducerId."""

    def stop(self) -> None:
        """Begin no further transaction."""
        self._is_stopped = True

    @property
    def is_idle(self) -> bool:
        """True once it is stopped and has no transaction under way."""
        return self._is_stopped and self._phase in {_Phase.READY, _Phase.FENCED}

    def describe(self) -> str:
        """Return the state, for the trace and the report of a world that does not settle."""
        tag = "" if self._transaction is None else self._transaction.tag
        return f"{self._settings.transactional_id} {self._phase.name} {self._producer} {tag}"

    def _later(self, after_us: int, action: Callable[..., None], *arguments: object) -> None:
        self.machine.later(self._rng.randrange(1, 2 * after_us), self.take, action, *arguments)

    # --- producer ids and epochs ---

    def _begin_anew(self) -> None:
        self._instance = self._new_instance()
        self._producer = NO_PRODUCER
        self._init(NO_PRODUCER)

    def _init(self, expected: ProducerIdAndEpoch) -> None:
        self._phase = _Phase.BEGINNING
        request = self._settings.init(expected)
        self._control.ask(self._instance, request, self._initialized)

    def _initialized(self, reply: Reply, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE or not isinstance(reply.result, InitProducerIdResult):
            self._refused(reply, code)
            return
        self._oracle.initialized(self._instance, reply.result.producer, reply.came)
        self._use(reply.result.producer)
        self._go_on()

    def _use(self, producer: ProducerIdAndEpoch) -> None:
        if producer != self._producer:
            self._producer = producer
            self._sequences.clear()

    def _go_on(self) -> None:
        self._phase, self._transaction = _Phase.READY, None
        self._later(PAUSE_US, self._begin)

    def _refused(self, reply: Reply, code: ErrorCode) -> None:
        """Give up this epoch after an error: fencing, or an invalid request."""
        if reply.is_of_leader and code in FENCED:
            # An abort succeeds even if the coordinator has aborted before (KIP-890).
            is_late = self._phase is not _Phase.ABORTING or self._settings.version < 2
            late = self._transaction if is_late else None
            self._oracle.fenced(self._instance, late, code.name, reply.coordinator)
        elif reply.is_of_leader:
            self._oracle.mistaken(self._instance, code.name)
        self._phase = _Phase.FENCED
        if self._producer != NO_PRODUCER and self._rng.random() < 0.6:
            self._later(ZOMBIE_US // 8, self._act_as_zombie)
        self._later(ZOMBIE_US, self._maybe_begin_anew)

    def _maybe_begin_anew(self) -> None:
        if self._phase is _Phase.FENCED and not self._is_stopped:
            self._begin_anew()

    def _act_as_zombie(self) -> None:
        """Send a request with the fenced producer epoch."""
        if self._phase is not _Phase.FENCED or self._is_stopped:
            return
        settings, producer = self._settings, self._producer
        commits = self._rng.random() < 0.5
        if commits and self._transaction is not None:
            self._oracle.asks_to_end(self._transaction, commits=True)
        requests: list[Request] = [settings.end(producer, commits=commits)]
        if settings.version < 2:
            requests.append(settings.add(producer, [self._rng.choice(self._places)]))
        if settings.version > 0:
            requests.append(settings.init(producer))
        self._control.ask(self._instance, self._rng.choice(requests), self._zombie_answered)
        self._later(ZOMBIE_US // 8, self._act_as_zombie)

    def _zombie_answered(self, reply: Reply, code: ErrorCode) -> None:
        if code is ErrorCode.NONE and isinstance(reply.result, InitProducerIdResult):
            self._oracle.initialized(self._instance, reply.result.producer, reply.came)

    # --- a transaction ---

    def _begin(self) -> None:
        if self._is_stopped or self._phase is not _Phase.READY:
            return
        rng = self._rng
        tag = self._new_name()
        self._transaction = self._oracle.began(tag, self._instance, self._producer)
        writing = self._writing(self._transaction)
        places = rng.sample(self._places, rng.randrange(1, len(self._places) + 1))
        self._batches, self._not_added, self._is_careless = {}, {}, False
        count = 0
        for at in sorted(places):
            batches = []
            for _ in range(rng.randrange(1, BATCHES_MAX + 1)):
                records = range(count, count + rng.randrange(1, RECORDS_MAX + 1))
                batches.append([f"{tag}:{number}".encode() for number in records])
                count += len(records)
            sequence = self._sequences.get(at, 0)
            self._not_added[at] = PartitionBatches(writing, at, sequence, batches)
        self._go_on_writing()

    def _go_on_writing(self) -> None:
        """Write to some partitions; a client that sends AddPartitions may do so in steps."""
        if self._settings.version >= 2:
            self._write([*self._not_added])
            return
        added = sorted(self._not_added)
        if self._rng.random() < ADDS_IN_STEPS:
            added = added[:1]
        self._phase = _Phase.ADDING
        request = self._settings.add(self._producer, added)
        self._control.ask(self._instance, request, partial(self._added, added))

    def _writing(self, transaction: Transaction) -> Writing:
        return Writing(
            party=self,
            cluster=self._cluster,
            rng=self._rng,
            transactional_id=self._settings.transactional_id,
            producer=self._producer,
            adds=self._settings.version >= 2,
            acknowledged=self._acknowledged,
            refused=lambda _: self._end(commits=False),
            ended=lambda _: self._maybe_end(),
            is_over=lambda: (
                self._transaction is not transaction or self._phase is not _Phase.WRITING
            ),
        )

    def _added(self, places: list[TopicPartition], reply: Reply, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self._write(places)
        else:
            self._refused(reply, code)

    def _write(self, places: list[TopicPartition]) -> None:
        self._phase = _Phase.WRITING
        added = {at: self._not_added.pop(at) for at in places}
        self._batches |= added
        changes_its_mind = self._rng.random() < CHANGES_ITS_MIND
        after_us = self._rng.randrange(CHANGE_US) if changes_its_mind else GIVE_UP_US
        self.machine.later(after_us, self.take, self._give_up, self._transaction)
        for batches in added.values():
            batches.send()

    def _acknowledged(self, at: TopicPartition, base_offset: int, values: list[bytes]) -> None:
        for index, value in enumerate(values):
            self._replication.acknowledge(at, base_offset + index, value)
        if self._transaction is not None:
            self._oracle.acknowledged(self._transaction, values)

    def _maybe_end(self) -> None:
        transaction = self._transaction
        if transaction is None or not self._is_written():
            return
        if self._not_added:
            self._go_on_writing()
            return
        self._is_careless = self._carelessness.is_due()
        if self._is_careless:
            is_old = self._settings.version < 2
            at = self._rng.choice(self._places if is_old else [*self._batches])
            is_added = at in self._batches
            sequences = self._sequences | self._next_sequences()
            self._carelessness.produce(
                transaction,
                at,
                sequences.get(at, 0),
                is_added=is_added,
                answered=partial(self._was_careless, transaction),
            )
        else:
            self._end(commits=self._rng.random() < COMMITS)

    def _was_careless(self, transaction: Transaction, result: ProduceResult | None) -> None:
        """End the transaction. Unless the batch was refused, its sequence may be used up.

        A topic that was re-created meanwhile appends it: it has no state of the transaction.
        """
        if self._transaction is transaction and self._phase is _Phase.WRITING:
            self._is_careless = result is None or result.error_code not in ABORTABLE
            self._end(commits=result is not None and self._rng.random() < COMMITS)

    def _is_written(self) -> bool:
        return all(one.is_ended for one in self._batches.values())

    def _next_sequences(self) -> dict[TopicPartition, int]:
        return {at: one.next_sequence for at, one in self._batches.items()}

    def _give_up(self, transaction: Transaction) -> None:
        if self._transaction is transaction and self._phase is _Phase.WRITING:
            self._end(commits=False)

    def _end(self, *, commits: bool) -> None:
        if self._phase is not _Phase.WRITING or self._transaction is None:
            return
        self._phase = _Phase.COMMITTING if commits else _Phase.ABORTING
        self._oracle.asks_to_end(self._transaction, commits=commits)
        request = self._settings.end(self._producer, commits=commits)
        self._control.ask(
            self._instance,
            request,
            lambda reply, code: self._ended(reply, code, commits=commits),
        )

    def _ended(self, reply: Reply, code: ErrorCode, *, commits: bool) -> None:
        result = reply.result
        if (
            code is not ErrorCode.NONE
            or self._transaction is None
            or not isinstance(result, EndTransactionResult)
        ):
            self._refused(reply, code)
            return
        self._oracle.told(self._transaction, commits=commits)
        self.acknowledged += commits
        lost = self._is_careless or not self._is_written()
        self._sequences |= self._next_sequences()
        self._transaction = None
        if self._settings.version == 2:
            self._oracle.goes_on(self._instance, result.producer)
            self._use(result.producer)
        elif lost and self._settings.version == 1:
            self._init(self._producer)
            return
        elif lost:
            self._begin_anew()
            return
        self._go_on()
