"""recreated_topic: a topic is deleted and created again under its name while clients live on.

It proves or refutes that a topic is its id: each reader of the topic reads each of its lives from
the first record on, and no offset of a former life is used in a later one. The checker is
`topic_lives`.

Producers send all the time. Three kinds of readers poll: `alone` by assigned partitions, `classic`
and `consumer` as members of a group of that protocol. Members commit the records of each poll. A
reader is replaced by the next one of its kind after some polls: it continues at its group's
committed offsets, or, alone, at the beginning. In the end a last record is sent to each partition,
and all readers read up to it.

A key of the history is a partition in one life: `chaos.3-0` is partition 0 of the fourth topic
named `chaos`. An acknowledgement does not name its topic, so a send counts as acknowledged if the
topic was neither deleted nor created meanwhile; any other send has an unknown outcome. A history
holds (`f`):

  send      one record, as in other workloads.
  poll      micro-operations: the returned records; their `f` is the kind of the reader.
  recreate  the topic is deleted, and created again; value: the number of its new life.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, cast

from quorumlog.chaos.drivers.driver import (
    CallTimedOut,
    DriverConsumer,
    DriverError,
    DriverProducer,
    GroupDriver,
    GroupMember,
    Membership,
    Record,
    SendFailed,
    TopicDriver,
)
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.readers import key_of, message_of
from quorumlog.chaos.workloads.sends import keep_sending, record_of
from quorumlog.chaos.workloads.workload import REOPEN_S, Setup, Workload, opened, option

KINDS: Final = ("alone", "classic", "consumer")
_POLL_MS: Final = 200
_SESSION_TIMEOUT_MS: Final = 6_000  # the least that a broker allows by default
_IN_DOUBT_S: Final = 10.0  # after it, an unanswered deletion cannot delete the next life


@dataclass(frozen=True, slots=True, kw_only=True)
class RecreatedTopicOptions:
    """The rate of sends, and the lives of topics and readers."""

    rate: float = option(100.0, "sends a second of all producers, while brokers answer")
    producers: int = option(3, "clients that send, one record at a time each")
    life_ms: int = option(2_000, "the time from a creation to the next deletion, on average")
    polls_per_life: float = option(40.0, "polls before a reader is replaced, on average", above=1)


class _Alone:
    """A reader of assigned partitions."""

    def __init__(self, client: DriverConsumer, topic: str, partitions: Sequence[int]) -> None:
        self.client: Final = client
        self._topic: Final = topic
        self._partitions: Final = partitions

    async def begin(self) -> None:
        await self.client.assign(self._topic, self._partitions)

    async def commit(self, records: Collection[Record]) -> None:
        """Do nothing: there is no group."""


class _Member:
    """A reader that is a member of a group."""

    def __init__(self, client: GroupMember, topic: str) -> None:
        self.client: Final = client
        self._topic: Final = topic

    async def begin(self) -> None:
        await self.client.subscribe(self._topic)

    async def commit(self, records: Collection[Record]) -> None:
        """Commit the records of the last poll. Raises ConnectionError."""
        if records:
            places = {record.partition: record.offset + 1 for record in records}
            await self.client.commit(self._topic, places)


class RecreatedTopic:
    """The clients of one run. Process numbers: producers, readers by kind, the administrator."""

    def __init__(self, setup: Setup[RecreatedTopicOptions]) -> None:
        self._setup: Final = setup
        self._history: Final = setup.history
        self._partitions: Final = range(setup.partitions)
        self._administrator: Final = setup.options.producers + len(KINDS)
        self._life = 0
        self._changes = 0  # of the life: odd while the topic is deleted and created
        self._values: list[int] = []  # value -> the life in which it was sent
        self._read: Final[dict[str, set[int]]] = {kind: set() for kind in KINDS}

    async def work(self, working: asyncio.Event) -> None:
        """Send, read and recreate until `working` is cleared."""
        rng = self._setup.rng
        async with asyncio.TaskGroup() as tasks:
            for process in range(self._setup.options.producers):
                tasks.create_task(self._produce(process, rng(f"producer {process}"), working))
            for kind in KINDS:
                tasks.create_task(self._consume(kind, working.is_set, rng(kind)))
            tasks.create_task(self._recreate_often(rng("administrator"), working))

    def _key(self, life: int, partition: int) -> str:
        return key_of(f"{self._setup.topic}.{life}", partition)

    # --- sends ---

    async def _produce(self, process: int, rng: random.Random, working: asyncio.Event) -> None:
        options = self._setup.options
        gap_s = options.producers / options.rate

        async def send(producer: DriverProducer, process: int) -> bool:
            await self._send(producer, process, rng.choice(self._partitions))
            return True

        await keep_sending(self._setup, count(process), working, send, rng=rng, gap_s=gap_s)

    async def _send(self, producer: DriverProducer, process: int, partition: int) -> int | None:
        """Send the next value; return it if it is acknowledged in one life of the topic."""
        life, changes, value = self._life, self._changes, len(self._values)
        self._values.append(life)
        record = record_of(self._setup, value)
        message = record.message(self._key(life, partition))
        self._history.append(process, "invoke", "send", [message])
        outcome, error_text, offset = "info", "", UNKNOWN_OFFSET
        try:
            offset = await (await record.send(producer, self._setup.topic, partition))
        except SendFailed as error:
            outcome, error_text = "fail" if error.definite else "info", str(error)
        else:
            if changes == self._changes and changes % 2 == 0:
                outcome = "ok"
        told = message._replace(offset=offset if outcome == "ok" else UNKNOWN_OFFSET)
        self._history.append(process, outcome, "send", [told], error=error_text)
        return value if outcome == "ok" else None

    # --- reads ---

    async def _open(self, kind: str) -> _Alone | _Member | None:
        """Open the next reader of a kind; None if no broker answers."""
        setup, driver = self._setup, cast(GroupDriver, self._setup.driver)
        if kind == "alone":
            consumer = await opened(driver.consumer(setup.bootstrap, kind))
            return None if consumer is None else _Alone(consumer, setup.topic, self._partitions)
        membership = Membership(
            group_id=f"{setup.topic}-{kind}",
            protocol=kind,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            max_poll_interval_ms=_SESSION_TIMEOUT_MS,
        )
        member = await opened(driver.member(setup.bootstrap, kind, membership))
        return None if member is None else _Member(member, setup.topic)

    async def _consume(
        self, kind: str, goes_on: Callable[[], bool], rng: random.Random | None = None
    ) -> None:
        """Read with readers of a kind, one after the other, which live on without an `rng`."""
        while goes_on():
            reader = await self._open(kind)
            if reader is None:
                continue
            try:
                await reader.begin()
                while goes_on():
                    await self._poll(reader, kind)
                    if rng and rng.random() < 1 / self._setup.options.polls_per_life:
                        break
            except ConnectionError:  # the next reader takes its place
                await asyncio.sleep(REOPEN_S)
            finally:
                await reader.client.close()

    async def _poll(self, reader: _Alone | _Member, kind: str) -> None:
        """Poll once, and commit. Raises ConnectionError if the reader's position is uncertain."""
        process = self._setup.options.producers + KINDS.index(kind)
        self._history.append(process, "invoke", "poll")
        try:
            records = await reader.client.poll(_POLL_MS)
        except ConnectionError as error:
            outcome = "info" if isinstance(error, CallTimedOut) else "fail"
            self._history.append(process, outcome, "poll", error=str(error))
            if kind == "alone" or isinstance(error, CallTimedOut):
                raise
            return await asyncio.sleep(REOPEN_S)
        self._history.append(process, "ok", "poll", self._told(kind, records))
        try:
            await reader.commit(records)
        except DriverError as error:  # the topic may have been deleted
            if isinstance(error, CallTimedOut):
                raise

    def _told(self, kind: str, records: Collection[Record]) -> list[Message]:
        told = []
        for record in records:
            value = int(record.value)
            if 0 <= value < len(self._values):
                key = self._key(self._values[value], record.partition)
                told.append(message_of(record)._replace(key=key, f=kind))
                self._read[kind].add(value)
        return told

    # --- the lives of the topic ---

    async def _recreate_often(self, rng: random.Random, working: asyncio.Event) -> None:
        while working.is_set():
            await asyncio.sleep(rng.uniform(0.25, 1.75) * self._setup.options.life_ms / 1000)
            if working.is_set():
                await self._recreate()

    async def _recreate(self) -> None:
        """Delete the topic and create it again; retry until both succeed."""
        told = [Message(self._setup.topic, UNKNOWN_OFFSET, self._life + 1)]
        self._history.append(self._administrator, "invoke", "recreate", told)
        self._changes += 1
        is_created = False
        while not is_created:  # a producer's metadata request may have created it meanwhile
            await self._delete()
            is_created = await self._change(creates=True) is None
        self._life += 1
        self._changes += 1
        self._history.append(self._administrator, "ok", "recreate", told)

    async def _delete(self) -> None:
        is_deleted = is_in_doubt = False
        while not is_deleted:
            error = await self._change(creates=False)
            is_deleted = error is None or error.code == "UNKNOWN_TOPIC_OR_PARTITION"
            is_in_doubt = is_in_doubt or not (error is None or is_deleted or error.definite)
        if is_in_doubt:
            await asyncio.sleep(_IN_DOUBT_S)

    async def _change(self, *, creates: bool) -> DriverError | None:
        """Try to create or delete the topic, once; return the error, or None."""
        setup, driver = self._setup, cast(TopicDriver, self._setup.driver)
        while (admin := await opened(driver.admin(setup.bootstrap, "admin"))) is None:
            pass
        try:
            if creates:
                await admin.create(
                    setup.topic,
                    partitions=setup.partitions,
                    replication_factor=setup.replication_factor,
                )
            else:
                await admin.delete(setup.topic)
        except DriverError as error:
            await asyncio.sleep(REOPEN_S)
            return error
        finally:
            await admin.close()
        return None

    # --- the end ---

    async def final_reads(self, timeout_s: float) -> bool:
        """Send a last record to each partition; return whether all readers read it in time."""
        try:
            async with asyncio.timeout(timeout_s):
                last = {await self._send_last(partition) for partition in self._partitions}
                await asyncio.gather(
                    *(self._consume(kind, partial(self._lacks, kind, last)) for kind in KINDS)
                )
        except TimeoutError:
            return False
        return True

    def _lacks(self, kind: str, values: set[int]) -> bool:
        return not values <= self._read[kind]

    async def _send_last(self, partition: int) -> int:
        setup = self._setup
        while True:
            producer = await opened(setup.driver.producer(setup.bootstrap, "p-last"))
            if producer is None:
                continue
            try:
                value = await self._send(producer, 0, partition)
            finally:
                await producer.close()
            if value is not None:
                return value


WORKLOAD: Final = Workload(
    name="recreated_topic",
    text="a topic is deleted and created again while members of both protocols read it",
    options=RecreatedTopicOptions,
    clients=RecreatedTopic,
    model="topic_lives",
    requires=frozenset({"groups", "consumer-protocol", "topics"}),
)
