"""Records the operations of a test's clients, and runs the checkers on them.

The test records each operation: it begins when the block is entered, and ends with `ok`, `fail` or,
if the block calls neither or raises, as unknown (`info`). `verdict` heals the cluster, reads every
recorded partition to its end, twice, and runs the checkers.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from quorumlog.chaos.control.final_reads import read_to_the_end
from quorumlog.chaos.history import NEMESIS, UNKNOWN_OFFSET, HistoryWriter, Message
from quorumlog.chaos.history.recorded_values import RecordedValues, key_of, read_records
from quorumlog.testing.judged import TestVerdict, judge
from quorumlog.testing.recorded_clients import recorded
from quorumlog.testing.trial import Trial

if TYPE_CHECKING:
    from quorumlog.chaos.control.manual_nemesis import ManualNemesis
    from quorumlog.cluster import LocalCluster

_META: Final = {"workload": "a test's own clients", "model": "kafka_log"}


class HistoryClosed(Exception):
    """The history was judged: it accepts no more operations."""


class RecordedOperation:
    """One operation of a client, from the beginning of the block to its end.

    Invariant: it ends once. A block that raises ends it as unknown, unless the error is definite
    (`KafkaError.definite`): then it failed. The error propagates.
    """

    def __init__(self, history: "History", f: str, lane: Hashable, meant: list[Message]) -> None:
        self._history: Final = history
        self._f: Final = f
        self._lane: Final = lane
        self._meant: Final = meant
        self._process = -1
        self._is_open = False

    def __enter__(self) -> Self:
        self._process = self._history.begin(self._f, self._lane, self._meant)
        self._is_open = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if not self._is_open:
            return
        reason = "the test did not report the outcome" if error is None else repr(error)
        if getattr(error, "definite", False) is True:
            self.fail(reason)
        else:
            self._end("info", self._meant, reason)

    def ok(
        self, records: object = (), *, offset: int | None = None, checksum: int | None = None
    ) -> None:
        """Record its success: the `offset` of a send, or the records of a poll.

        `checksum`: of a send, if `History.send` had none.

        Records are the result of a poll of quorumlog, aiokafka, kafka-python or confluent-kafka, or
        tuples of key, offset and value.
        """
        if self._f == "send":
            if offset is None or offset < 0:
                raise ValueError(f"ok(offset={offset}): the acknowledged offset is expected")
            [sent] = self._meant
            known = sent.checksum if checksum is None else checksum
            self._end("ok", [sent._replace(offset=offset, checksum=known)])
        else:
            self._end("ok", self._history.messages_of(records))

    def fail(self, error: object = "") -> None:
        """Record that it has no effect, now or later; if in doubt, call `unknown`."""
        self._end("fail", self._meant, str(error))

    def unknown(self, error: object = "") -> None:
        """Record that its effect is unknown: a timeout, a lost connection."""
        self._end("info", self._meant, str(error))

    def _end(self, outcome: str, messages: list[Message], error: str = "") -> None:
        if not self._is_open:
            raise ValueError(f"this {self._f} has ended, or its block has not begun")
        self._is_open = False
        self._history.end(
            self._process, outcome, f=self._f, lane=self._lane, messages=messages, error=error
        )


class History:
    """The history of one test. Threads and coroutines may record at the same time.

    Sends may overlap. The operations of one reading client must not: `client` names it; by default
    each thread and each task counts as a client. `value_of` extracts the recorded value from the
    value of a record; by default they are equal.
    """

    def __init__(
        self,
        trial: Trial,
        *,
        cluster: "LocalCluster | None" = None,
        nemesis: "ManualNemesis | None" = None,
    ) -> None:
        self._trial: Final = trial
        self._cluster: Final = cluster
        self._nemesis: Final = nemesis
        self._writer: Final = HistoryWriter(trial.store, meta={**_META, "test": trial.name})
        self._lock: Final = threading.Lock()
        self._judging: Final = threading.Lock()
        self._values: Final = RecordedValues()
        self._sent: Final[set[tuple[str, int]]] = set()
        self._idle: Final[list[int]] = []  # sending processes without an open operation
        self._readers: Final[dict[Hashable, int]] = {}
        self._busy: Final[set[Hashable]] = set()
        self._begun: Final[dict[int, set[str]]] = {}  # by reader: keys with a recorded start
        self._next_process = 0
        self._is_closed = False
        self._verdict: TestVerdict | None = None
        self.value_of: Callable[[Any], object] | None = None
        self._is_looked_at = False

    def __enter__(self) -> Self:
        self._trial.records.append(self._note)
        self._trial.judges.append(self._complaint)
        return self

    def __exit__(self, *_: object) -> None:
        self._trial.records.remove(self._note)
        self._writer.close()

    def send(self, key: object, value: object, *, checksum: int = 0) -> RecordedOperation:
        """Return a block in which one record is sent: `with history.send(key, 7) as op: ...`.

        key: the topic-partition, such as `orders-0`. value: unique per key; a retry belongs into
        the same block. checksum: `checksum_of` the record's key, headers and timestamp, with which
        every read of the value is compared; 0: none. Raises ValueError.
        """
        name = key_of(key)
        with self._lock:
            number = self._values.number(value)
            if (name, number) in self._sent:
                raise ValueError(
                    f"value {value!r} was sent to {name} before: values must differ, and retries"
                    " of one send belong into one block"
                )
            self._sent.add((name, number))
        meant = Message(name, UNKNOWN_OFFSET, number, checksum=checksum)
        return RecordedOperation(self, "send", None, [meant])

    def poll(self, *, client: Hashable = None) -> RecordedOperation:
        """Return a block in which a client polls: `with history.poll() as op: op.ok(records)`."""
        return RecordedOperation(self, "poll", _reader(client), [])

    def assign(self, keys: Iterable[object], *, client: Hashable = None) -> None:
        """Record that a client reads these partitions from now on, each from its beginning."""
        self._move("assign", keys, client)

    def seek(self, keys: Iterable[object], *, client: Hashable = None) -> None:
        """Record that a client's position in these partitions has changed apart from its polls."""
        self._move("seek", keys, client)

    def recorded(self, client: object) -> Any:
        """Return a recording wrapper of a Producer, SyncProducer, Consumer or SyncConsumer.

        It sends by `send_and_wait` and reads by `poll`. Raises TypeError for other clients.
        """
        return recorded(self, client)

    def forget_positions(self, *, client: Hashable = None) -> None:
        """Record that a client may read on at any offset, in every partition."""
        with self._lock:
            process = self._readers.get(_reader(client))
            if process is not None:
                self._begun.pop(process, None)

    @property
    def verdict(self) -> TestVerdict:
        """The verdict. The first call heals the cluster, makes the final reads, and blocks."""
        self._is_looked_at = True
        return self._judged()

    def _complaint(self) -> str | None:
        """Return an error if the verdict is not valid and the test has not read it."""
        if self._is_looked_at or self._next_process == 0 or self._judged().valid:
            return None
        return "the recorded history is not valid"

    def _judged(self) -> TestVerdict:
        with self._judging:
            if self._verdict is None:
                if self._nemesis is not None:
                    self._nemesis.heal_now()  # another thread records the heal
                self._read_to_the_end()
                with self._lock:
                    self._is_closed = True
                self._writer.close()
                self._verdict = self._trial.verdict = judge(self._trial.store)
            return self._verdict

    def __repr__(self) -> str:
        return f"<History in {self._trial.store}>"

    def begin(self, f: str, lane: Hashable, meant: list[Message]) -> int:
        """Write the beginning of an operation; return its process."""
        with self._lock:
            self._require_open()
            if lane is None:
                process = self._idle.pop() if self._idle else self._new_process()
            else:
                if lane in self._busy:
                    raise ValueError("a client polls once at a time: name each by client=...")
                self._busy.add(lane)
                process = self._reader_process(lane)
            self._writer.append(process, "invoke", f, meant)
            return process

    def end(
        self,
        process: int,
        outcome: str,
        *,
        f: str,
        lane: Hashable,
        messages: list[Message],
        error: str,
    ) -> None:
        """Write the end of an operation. An unknown end is the last row of its process."""
        with self._lock:
            self._require_open()
            self._busy.discard(lane)
            if lane is None:
                if outcome != "info":
                    self._idle.append(process)
            elif outcome == "info":
                del self._readers[lane]
            elif outcome == "ok":
                self._end_poll(process, f, messages)
                return
            self._writer.append(process, outcome, f, messages, error=error)

    def messages_of(self, records: object) -> list[Message]:
        """Return records as messages of the history."""
        with self._lock:
            return [
                Message(
                    read.key, read.offset, self._values.number(read.value), checksum=read.checksum
                )
                for read in read_records(records, self.value_of)
            ]

    def _end_poll(self, process: int, f: str, messages: list[Message]) -> None:
        """Write a poll's end; before records of a key with an unrecorded start, write a seek.

        A reader that began in the middle proves nothing about records below. So the poll is written
        as two polls, with the seek between them.
        """
        known = self._begun.setdefault(process, set())
        new = {message.key for message in messages} - known
        self._writer.append(process, "ok", f, [each for each in messages if each.key in known])
        if not new:
            return
        known |= new
        named = [Message(key, UNKNOWN_OFFSET, -1) for key in sorted(new)]
        for outcome in ("invoke", "ok"):
            self._writer.append(process, outcome, "seek", named)
        self._writer.append(process, "invoke", f)
        self._writer.append(process, "ok", f, [each for each in messages if each.key in new])

    def _move(self, f: str, keys: Iterable[object], client: Hashable) -> None:
        named = [Message(key_of(key), UNKNOWN_OFFSET, -1) for key in keys]
        lane = _reader(client)
        process = self.begin(f, lane, named)
        with self._lock:
            known = self._begun.setdefault(process, set())
            if f == "assign":
                known.clear()
            known.update(message.key for message in named)
            self._busy.discard(lane)
            self._writer.append(process, "ok", f, named)

    def _note(self, f: str, node: str, details: str) -> None:
        with self._lock:
            if not self._is_closed:
                self._writer.append(NEMESIS, "info", f, node=node, details=details)

    def _require_open(self) -> None:
        if self._is_closed:
            raise HistoryClosed("the history was judged: it takes no more operations")

    def _new_process(self) -> int:
        self._next_process += 1
        return self._next_process - 1

    def _reader_process(self, lane: Hashable) -> int:
        if lane not in self._readers:
            self._readers[lane] = self._new_process()
        return self._readers[lane]

    def _read_to_the_end(self) -> None:
        keys = sorted({key for key, _ in self._sent})
        if self._cluster is not None and keys:
            read_to_the_end(
                self._writer,
                client=self._cluster.own_client(),
                keys=keys,
                first_process=self._next_process,
                number_of=self._number_of,
            )

    def _number_of(self, value: bytes) -> int:
        with self._lock:
            return self._values.number(value if self.value_of is None else self.value_of(value))


def _reader(client: Hashable) -> Hashable:
    """Return the identity of a reading client: by default its thread and task."""
    if client is not None:
        return "named", client
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return "reader", threading.get_ident(), id(task)
