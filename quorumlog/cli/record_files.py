"""`quorumlog dump | load`: the records of topics as lines of JSON, from and to any Kafka.

A line has topic, partition, offset, timestamp_ms, key, value and headers. Bytes that are UTF-8 are
text, others {"base64": "..."}; null stays null, and headers keep their order and duplicates.
"""

import json
import sys
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from quorumlog.cli import formats
from quorumlog.cli.connect import Cluster, on_cluster, run, with_cluster
from quorumlog.cli.lines import read_lines
from quorumlog.cli.options import Topic
from quorumlog.cli.output import EXIT_USAGE, document, fail, say
from quorumlog.cli.progress import progress_bar
from quorumlog.client import Consumer, Delivery, KafkaError, Producer, TopicPartition

_POLL_MS: Final = 500
_UNACKNOWLEDGED_MAX: Final = 10_000
_REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024  # the topic limits its records
_FIELDS: Final = frozenset(
    {"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"}
)


class Line(NamedTuple):
    """One record of a file."""

    topic: str
    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@with_cluster
def dump(
    cluster: Cluster,
    topic: Topic,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only this partition.")
    ] = None,
) -> None:
    """Print the records of a topic as lines of JSON, up to its present end; `load` reads them.

    Records of open and aborted transactions are left out. `dump-log` prints the files of a log
    directory instead.
    """
    client = cluster.client()

    async def work() -> int:
        consumer = Consumer(**client, isolation_level="read_committed", auto_offset_reset="none")
        async with consumer:
            found = await consumer.partitions_for(topic)
            if partition is not None and partition not in found:
                fail(f"topic {topic} has {len(found)} partitions: none is {partition}")
            chosen = [TopicPartition(topic, index) for index in found if partition in {None, index}]
            return await _dump(consumer, chosen)

    say(f"{run(work())} records")


async def _dump(consumer: Consumer, chosen: list[TopicPartition]) -> int:
    """Print the records below the ends that the partitions have now; return their number."""
    starts, ends = await consumer.beginning_offsets(chosen), await consumer.end_offsets(chosen)
    left = {one for one in chosen if starts[one] < ends[one]}
    total, printed = sum(ends[one] - starts[one] for one in left), 0
    consumer.assign(left)
    for one in left:
        consumer.seek(one, starts[one])
    with progress_bar("dumping", total) as note:
        while left:
            for records in (await consumer.poll(_POLL_MS)).values():
                for record in records:
                    if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                        sys.stdout.buffer.write(formats.json_line(record))
                        printed += 1
            positions = {one: await consumer.position(one) for one in left}
            done = {one for one, position in positions.items() if position >= ends[one]}
            left -= done
            consumer.pause(done)
            note(total - sum(ends[one] - positions[one] for one in left))
    sys.stdout.buffer.flush()
    return printed


@on_cluster
def load(
    cluster: Cluster,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Lines of `dump`; - is standard input.")
    ] = "-",
    topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Send all records to this topic. Default: their own."),
    ] = None,
) -> None:
    """Send the records of `quorumlog dump`: to the same partitions, in the same order.

    Keys, values, headers and timestamps are kept; offsets are not. The topics must exist, with
    enough partitions. A line that is no record ends the command with its number: no record behind
    it is sent.
    """
    client = cluster.client()
    path = None if file == "-" else Path(file)
    if path is None and sys.stdin is None:
        fail("standard input is closed; give a file", EXIT_USAGE)
    try:
        source = sys.stdin.buffer if path is None else path.open("rb")
    except OSError as error:
        fail(f"{file}: {error.strerror}", EXIT_USAGE)
    sending = _Sending(topic)

    async def work() -> None:
        size = path.stat().st_size if path is not None else 0
        with source, progress_bar("loading", size) as note:
            async with Producer(**client, max_request_size=_REQUEST_BYTES_MAX) as producer:
                try:
                    await sending.send_all(producer, source.fileno(), note)
                finally:
                    await sending.settle()

    try:
        run(work())
    finally:
        say(f"{sending.acknowledged} records acknowledged")
    if cluster.json:
        document({"records": sending.acknowledged})


class _Sending:
    """Sends lines in order. `acknowledged`: the number of records that are in the cluster."""

    def __init__(self, topic: str | None) -> None:
        self.acknowledged = 0
        self._topic: Final = topic
        self._waiting: Final = deque[Delivery]()
        self._partitions: Final[dict[str, int]] = {}

    async def send_all(self, producer: Producer, fd: int, note: Callable[[float], object]) -> None:
        """Send every line. Raises ValueError with the number of a line that is no record."""
        number = size = 0
        async for lines in read_lines(fd):
            for text in lines:
                number += 1
                size += len(text) + 1
                if text.strip():
                    await self._send(producer, number, text)
            note(size)
        await producer.flush()

    async def _send(self, producer: Producer, number: int, text: bytes) -> None:
        try:
            self._waiting.append(await self._begin(producer, parse_line(text)))
        except (ValueError, KafkaError) as error:
            raise ValueError(f"line {number}: {error}") from error
        while len(self._waiting) > _UNACKNOWLEDGED_MAX:
            await self._settle_first()

    async def _begin(self, producer: Producer, line: Line) -> Delivery:
        topic = self._topic or line.topic
        if topic not in self._partitions:
            self._partitions[topic] = len(await producer.partitions_for(topic))
        if line.partition >= self._partitions[topic]:
            raise ValueError(
                f"topic {topic} has {self._partitions[topic]} partitions, the record is of"
                f" partition {line.partition}; `quorumlog topics grow {topic} --partitions"
                f" {line.partition + 1}` adds the missing ones"
            )
        return await producer.send(
            topic,
            line.value,
            key=line.key,
            partition=line.partition,
            headers=line.headers,
            timestamp_ms=line.timestamp_ms,
        )

    async def settle(self) -> None:
        """Wait for all records that were sent. Raises the first KafkaError."""
        failed: KafkaError | None = None
        while self._waiting:
            try:
                await self._settle_first()
            except KafkaError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _settle_first(self) -> None:
        await self._waiting.popleft()
        self.acknowledged += 1


def parse_line(text: bytes) -> Line:
    """Return the record of one line. Raises ValueError with the field that is wrong."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is no JSON ({error})") from error
    if type(fields) is not dict:
        raise ValueError("a record is a JSON object")
    if unknown := sorted(fields.keys() - _FIELDS):
        raise ValueError(f"a record has no field {unknown[0]!r}, only {', '.join(sorted(_FIELDS))}")
    headers = fields.get("headers", [])
    if not isinstance(headers, list) or not all(
        isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in headers
    ):
        raise ValueError('headers: a list of ["name", value] is expected')
    topic = fields.get("topic")
    if not isinstance(topic, str) or not topic:
        raise ValueError("topic: a name is expected")
    return Line(
        topic=topic,
        partition=_whole(fields, "partition"),
        timestamp_ms=_whole(fields, "timestamp_ms"),
        key=_bytes("key", fields.get("key")),
        value=_bytes("value", fields.get("value")),
        headers=tuple((name, _bytes(f"header {name}", value)) for name, value in headers),
    )


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name}: a whole number, 0 or above, is expected, not {value!r}")
    return value


def _bytes(name: str, field: object) -> bytes | None:
    """Return the inverse of `formats.text_or_base64`. Raises ValueError."""
    match field:
        case None:
            return None
        case str():
            return field.encode()
        case {"base64": str(text), **rest} if not rest:
            try:
                return b64decode(text, validate=True)
            except ValueError as error:
                raise ValueError(f"{name}: this is no base64 ({error})") from error
        case _:
            raise ValueError(f'{name}: text, null or {{"base64": "..."}} is expected')
