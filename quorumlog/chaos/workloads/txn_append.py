"""txn_append: transactions of one to four steps, each a send or a poll at read_committed.

It proves or refutes that a transaction is visible as a whole or not at all: aborted records are
never polled, committed records are in the log, and no record is polled before its commit was
requested. Some transactions are aborted on purpose. Some producers share a transactional id: each
fences the other, and the loser (a zombie) may have a transaction open. The checker is `kafka_log`.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from quorumlog.chaos.drivers.driver import (
    CallTimedOut,
    CommittedReader,
    DriverError,
    TransactionalProducer,
)
from quorumlog.chaos.history import Message
from quorumlog.chaos.workloads.lanes import Lanes
from quorumlog.chaos.workloads.readers import key_of, message_of
from quorumlog.chaos.workloads.sends import record_of
from quorumlog.chaos.workloads.transactions import (
    CommittedReaders,
    open_reader,
    send_all,
    transact,
    transactions_of,
)
from quorumlog.chaos.workloads.workload import LaneOptions, Setup, Workload, opened, option

_POLL_MS: Final = 50
_SENDS: Final = 0.75  # the share of steps that are sends
_PAUSE_S: Final = 0.03  # before a commit, on average
_STEPS: Final = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnAppendOptions(LaneOptions):
    """The number of clients, and the shape of their transactions."""

    rate: float = option(60.0, "transactions a second of all producers, while brokers answer")
    producers: int = option(5, "clients that perform one transaction at a time each")
    consumers: int = option(2, "read_committed clients during the run", above=-1)
    final_readers: int = option(2, "clients that read everything at the end")
    aborts: float = option(0.15, "the share of transactions that are aborted on purpose", above=-1)
    twins: int = option(1, "pairs of producers that share a transactional id", above=-1)


class TxnAppend(Lanes[TxnAppendOptions]):
    """The lanes of one run. Invariant: no value is sent twice."""

    def __init__(self, setup: Setup[TxnAppendOptions]) -> None:
        options = setup.options
        first = options.producers + options.consumers + options.final_readers
        self._new_process: Final = count(first).__next__
        self._new_value: Final = count().__next__
        super().__init__(setup, CommittedReaders(setup, self._new_process, self._new_value))

    async def produce(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:
        """Perform transactions; after a doubt, and when fenced, with new clients."""
        setup = self._setup
        options = setup.options
        is_twin = lane < 2 * options.twins
        name = f"{setup.topic}-{lane // 2 * 2 if is_twin else lane}"
        gap_s = options.producers / options.rate
        while working.is_set():
            process = self._new_process()
            made = transactions_of(setup).transactional(setup.bootstrap, f"p{process}", name)
            producer = await opened(made)
            if producer is None:
                continue
            reader = None
            try:
                reader = await open_reader(setup, process, f"c{process}", range(setup.partitions))
                is_of_use = reader is not None
                while reader is not None and is_of_use and working.is_set():
                    await asyncio.sleep(rng.expovariate(1 / gap_s))
                    is_of_use = await self._perform(producer, reader, process, rng)
            finally:
                await producer.close()
                if reader is not None:
                    await reader.close()

    async def _perform(
        self,
        producer: TransactionalProducer,
        reader: CommittedReader,
        process: int,
        rng: random.Random,
    ) -> bool:
        """Perform one transaction; return whether the clients can be used again."""
        setup = self._setup
        steps = [rng.random() < _SENDS for _ in range(rng.choice(_STEPS))]
        keys = [key_of(setup.topic, rng.randrange(setup.partitions)) for send in steps if send]
        told = [record_of(setup, self._new_value()).message(key, "send") for key in keys]
        commits = rng.random() >= setup.options.aborts
        pause_s = rng.expovariate(1 / _PAUSE_S)
        setup.history.append(process, "invoke", "txn", told)

        async def work() -> bool:
            sent = 0
            for is_send in steps:
                if is_send:
                    await send_all(setup, producer, told, [sent])
                    sent += 1
                else:
                    told.extend(await _polled(reader))
            await asyncio.sleep(pause_s)
            return commits

        outcome, error, is_of_use = await transact(setup, producer, work, told)
        setup.history.append(process, outcome, "txn", told, error=error)
        return is_of_use


async def _polled(reader: CommittedReader) -> Sequence[Message]:
    """Return the records of a poll, an empty list if it fails. Raises CallTimedOut."""
    try:
        records = await reader.poll(_POLL_MS)
    except CallTimedOut:
        raise
    except DriverError:  # no records were returned, and the position stands
        return []
    return [message_of(record)._replace(f="poll") for record in records]


WORKLOAD: Final = Workload(
    name="txn_append",
    text="transactions send and poll, abort and fence each other; each is atomic",
    options=TxnAppendOptions,
    clients=TxnAppend,
    requires=frozenset({"transactions"}),
    offers=frozenset({"txn"}),
)
