"""list_offsets: producers append records with times, others look up offsets by time (ListOffsets).

It proves or refutes the offsets that brokers return without a read of the log: its start and end,
the first record at or after a time, the record with the greatest time. The checker is
`list_offsets`.

The value of a record is its timestamp in ms, and each is sent once; within blocks of some records
they are out of order. They lie around the year 2001, and the topic keeps records for ever. A send
is a batch to one partition. A history holds, beside sends and final reads (`f`):

  list_offsets         one query to every partition; one client sends many, as one process. Its
                       micro-operations:
                       earliest, latest   offset: the result;
                       by_time            value: the requested time; offset: the result, -1: none;
                       max_timestamp      offset: the result;
                       found              after each of the last two: offset: the result; value:
                                          the record's timestamp in the response.
  final_list_offsets   the same by a new client, after the final reads.
"""

import asyncio
import random
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from quorumlog.chaos.drivers.driver import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Batching,
    CallTimedOut,
    DriverError,
    DriverProducer,
    OffsetLookup,
    OffsetsDriver,
)
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.lanes import Lanes
from quorumlog.chaos.workloads.readers import key_of
from quorumlog.chaos.workloads.sends import keep_sending, send_batch
from quorumlog.chaos.workloads.workload import (
    REOPEN_S,
    LaneOptions,
    Setup,
    Workload,
    before,
    one_topic,
    opened,
    option,
    use_clients,
)

_FIRST_MS: Final = 1_000_000_000_000
_BLOCK: Final = 32  # records whose times are out of order
_KEPT: Final = {"retention.ms": "-1"}
_LINGER_MS: Final = 5  # so that the records of one send are one batch
_FINAL_QUESTIONS: Final = 25
_KINDS: Final = {EARLIEST: "earliest", LATEST: "latest", MAX_TIMESTAMP: "max_timestamp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsOptions(LaneOptions):
    """The number of clients, the rates of sends and queries, and the size of a batch."""

    rate: float = option(300.0, "records a second of all producers, while brokers answer")
    producers: int = option(3, "clients that send, one batch at a time each")
    consumers: int = option(3, "clients that look up offsets")
    final_readers: int = option(1, "clients that read everything at the end")
    batch: int = option(5, "records of one send")
    questions: float = option(60.0, "lookups a second of all these clients")


class ListOffsets(Lanes[ListOffsetsOptions]):
    """The lanes of one run. Invariant: no timestamp is sent twice."""

    def __init__(self, setup: Setup[ListOffsetsOptions]) -> None:
        super().__init__(setup)
        self._block: list[int] = []
        self._rng: Final = setup.rng("times")

    def _next_time(self) -> int:
        if not self._block:
            first = _FIRST_MS + self._next_value * 2
            self._block = [first + 2 * place for place in range(_BLOCK)]
            self._rng.shuffle(self._block)
        self._next_value += 1
        return self._block.pop()

    def consumers(self, working: asyncio.Event) -> Iterable[Coroutine[Any, Any, None]]:
        """Return the work of the clients that look up offsets."""
        options, rng = self._setup.options, self._setup.rng
        return [
            self._ask_on(options.producers + lane, rng(f"asker {lane}"), working)
            for lane in range(options.consumers)
        ]

    async def produce(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:
        """Send one batch after the other."""
        setup, options = self._setup, self._setup.options
        gap_s = options.producers * options.batch / options.rate

        async def send(producer: DriverProducer, process: int) -> bool:
            times = [self._next_time() for _ in range(options.batch)]
            partition = rng.randrange(setup.partitions)
            return await send_batch(setup, producer, process, partition, times, timestamps_ms=times)

        await keep_sending(
            setup,
            self.processes(lane),
            working,
            send,
            rng=rng,
            gap_s=gap_s,
            batching=Batching(linger_ms=_LINGER_MS),
        )

    async def _open(self, process: int) -> OffsetLookup | None:
        driver = cast(OffsetsDriver, self._setup.driver)
        return await opened(driver.offsets(self._setup.bootstrap, f"o{process}"))

    async def _ask_on(self, process: int, rng: random.Random, working: asyncio.Event) -> None:
        """Send one query after the other; a process is a session with one client."""
        gap_s = self._setup.options.consumers / self._setup.options.questions
        lookup: OffsetLookup | None = None
        try:
            while working.is_set():
                await asyncio.sleep(rng.expovariate(1 / gap_s))
                if lookup is None:
                    lookup = await self._open(process)
                    continue
                try:
                    await self._ask(lookup, process, "list_offsets", self._question(rng))
                except CallTimedOut:
                    process = self.next_process(process)
                    hung, lookup = lookup, None
                    await hung.close()
        finally:
            if lookup is not None:
                await lookup.close()

    def _question(self, rng: random.Random) -> int:
        """Return EARLIEST, LATEST, MAX_TIMESTAMP or a time."""
        kinds = [EARLIEST, LATEST, LATEST, _FIRST_MS, _FIRST_MS]
        if "max-timestamp" in self._setup.driver.capabilities:
            kinds.append(MAX_TIMESTAMP)
        kind = rng.choice(kinds)
        latest = 2 * self._next_value + _BLOCK
        return kind if kind < 0 else kind + rng.randrange(-1, latest)

    async def _ask(self, lookup: OffsetLookup, process: int, f: str, asked: int) -> bool:
        """Query every partition; return whether that succeeded. Raises CallTimedOut."""
        topic, partitions = self._setup.topic, range(self._setup.partitions)
        kind = _KINDS.get(asked, "by_time")
        value = max(asked, 0)
        meant = [
            Message(key_of(topic, index), UNKNOWN_OFFSET, value, f=kind) for index in partitions
        ]
        self._history.append(process, "invoke", f, meant)
        try:
            found = await lookup.ask(topic, dict.fromkeys(partitions, asked))
        except CallTimedOut as error:
            self._history.append(process, "info", f, meant, error=str(error))
            raise
        except DriverError as error:  # a query has no effect
            self._history.append(process, "fail", f, meant, error=str(error))
            await asyncio.sleep(REOPEN_S)
            return False
        told = []
        for index, message in zip(partitions, meant, strict=True):
            answer = found[index]
            told.append(message._replace(offset=answer.offset))
            if kind in {"by_time", "max_timestamp"}:
                told.append(Message(message.key, answer.offset, answer.timestamp_ms, f="found"))
        self._history.append(process, "ok", f, told)
        return True

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every log to its end, then send every kind of query."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        if not await super().final_reads(timeout_s):
            return False
        rng = self._setup.rng("last questions")
        questions = [EARLIEST, LATEST, *(self._question(rng) for _ in range(_FINAL_QUESTIONS))]
        return await self._ask_all(questions, deadline_s)

    async def _ask_all(self, questions: Sequence[int], deadline_s: float) -> bool:
        left = [*questions]
        first = self.next_process(self.next_process(self._setup.options.producers))
        processes = self.processes(first)

        async def opening() -> tuple[int, OffsetLookup | None]:
            process = next(processes)
            return process, await self._open(process)

        async def ask(lookup: OffsetLookup, process: int) -> bool:
            del left[: await self._ask(lookup, process, "final_list_offsets", left[0])]
            return True

        await use_clients(lambda: bool(left) and before(deadline_s), opening, ask)
        return not left


WORKLOAD: Final = Workload(
    name="list_offsets",
    text="producers append records with timestamps; other clients look up starts, ends and times",
    options=ListOffsetsOptions,
    clients=ListOffsets,
    topics=partial(one_topic, config=_KEPT),
    model="list_offsets",
    dense=True,
    requires=frozenset({"offsets"}),
)
