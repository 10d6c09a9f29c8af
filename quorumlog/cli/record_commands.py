"""`quorumlog produce | consume`: lines in, lines out."""

import sys
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import typer

from quorumlog.cli import formats
from quorumlog.cli.connect import Cluster, on_cluster, run, with_cluster
from quorumlog.cli.lines import read_lines
from quorumlog.cli.options import Topic
from quorumlog.cli.output import EXIT_USAGE, document, fail, say
from quorumlog.client import Consumer, Delivery, KafkaError, Producer, TopicPartition
from quorumlog.client.offset_resets import BY_DURATION, parse_offset_reset

_UNACKNOWLEDGED_MAX: Final = 10_000
_POLL_MS: Final = 500
_ACKS: Final[dict[str, Any]] = {"all": "all", "-1": "all", "1": 1, "0": 0}


@on_cluster
def produce(
    cluster: Cluster,
    topic: Topic,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Split each line into key and value at this.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Header of every record. Repeatable."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Send all records to this partition instead of choosing it by key.",
        ),
    ] = None,
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        typer.Option(help="Compression of each batch."),
    ] = "none",
    acks: Annotated[
        Literal["all", "-1", "1", "0"],
        typer.Option(
            help="Wait for the whole ISR (all, -1), for the leader (1), or do not wait (0)."
        ),
    ] = "all",
) -> None:
    """Send each line of standard input as a record; return when all are acknowledged."""
    if sys.stdin is None:
        fail("standard input is closed; give the records as its lines", EXIT_USAGE)
    headers = _headers(header or [])
    client = cluster.client()
    descriptor = sys.stdin.fileno()
    sent = _Sent()

    async def work() -> None:
        producer = Producer(**client, acks=_ACKS[acks], compression_type=compression)
        async with producer:
            async for lines in read_lines(descriptor):
                for line in lines:
                    key, value = _split(line, key_separator)
                    await sent.add(
                        await producer.send(
                            topic, value, key=key, partition=partition, headers=headers
                        )
                    )
            await producer.flush()
            await sent.settle(down_to=0)

    try:
        run(work())
    finally:  # also after an error or Ctrl-C
        say(f"{sent.count()} records {'acknowledged' if acks != '0' else 'sent'}")
    if cluster.json:
        document({"topic": topic, "records": sent.count()})


def _headers(texts: Sequence[str]) -> list[tuple[str, bytes | None]]:
    """Read `NAME=VALUE` arguments; names may repeat. Ends the command for anything else."""
    headers: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            fail(f"--header {text}: write it as NAME=VALUE", EXIT_USAGE)
        headers.append((name, value.encode()))
    return headers


class _Sent:
    """The unacknowledged records in send order; at most `_UNACKNOWLEDGED_MAX`."""

    def __init__(self) -> None:
        self._settled = 0
        self._waiting = deque[Delivery]()

    async def add(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        if len(self._waiting) > _UNACKNOWLEDGED_MAX:
            await self.settle(down_to=_UNACKNOWLEDGED_MAX // 2)

    async def settle(self, *, down_to: int) -> None:
        """Wait until at most `down_to` are unacknowledged. Raises the first KafkaError."""
        while len(self._waiting) > down_to:
            await self._waiting[0]
            self._waiting.popleft()
            self._settled += 1

    def count(self) -> int:
        return self._settled + sum(_is_acknowledged(delivery) for delivery in self._waiting)


def _is_acknowledged(delivery: Delivery) -> bool:
    if not delivery.done():
        return False
    try:
        delivery.result()
    except KafkaError:
        return False
    return True


def _split(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    return (key, value) if found else (None, line)


@with_cluster
def consume(
    cluster: Cluster,
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Join this group; resume at its committed offsets."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|end|DURATION",
            help="Start position without a committed offset: PT1H (ISO 8601) is an hour ago.",
        ),
    ] = "end",
    maximum: Annotated[
        int | None, typer.Option("--max", metavar="N", help="Stop after N records.", min=1)
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print keys too, followed by this separator.")
    ] = None,
    text_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Format, as kcat's -f: %t topic, %p partition, %o offset, %T time in ms, %k key, "
            r"%s value, %h headers, %K %S lengths, %% percent; \n and \t.",
        ),
    ] = None,
    isolation_level: Annotated[
        Literal["read_committed", "read_uncommitted"],
        typer.Option(help="read_committed: leave out records of open and aborted transactions."),
    ] = "read_uncommitted",
    json: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON.")] = (
        False
    ),
) -> None:
    """Print the records of a topic, one line each, until --max or Ctrl-C."""
    to_line = _printer(key_separator, text_format, json=json)
    reset = _offset_reset(start)
    client = cluster.client()

    async def work() -> None:
        consumer = Consumer(
            **client, group_id=group, auto_offset_reset=reset, isolation_level=isolation_level
        )
        async with consumer:
            found = await consumer.partitions_for(topic)  # fails here if the topic does not exist
            if group is None:
                consumer.assign([TopicPartition(topic, index) for index in found])
            else:
                consumer.subscribe([topic])
            await _print_records(consumer, maximum, to_line)

    run(work())


def _offset_reset(start: str) -> str:
    """Return the value of auto_offset_reset. Ends the command for any other text."""
    if start in {"beginning", "end"}:
        return {"beginning": "earliest", "end": "latest"}[start]
    reset = BY_DURATION + start.removeprefix(BY_DURATION)
    try:
        parse_offset_reset(reset)
    except ValueError:
        message = "beginning, end, or a duration of ISO 8601 such as PT1H, PT30M or P2D"
        fail(f"--from {start}: it must be {message}", EXIT_USAGE)
    return reset


def _printer(key_separator: str | None, text_format: str | None, *, json: bool) -> formats.Print:
    """Return the formatter of records. At most one of the three may be given."""
    if [key_separator is not None, text_format is not None, json].count(True) > 1:
        fail("give only one of --key-separator, --format and --json", EXIT_USAGE)
    if json:
        return formats.json_line
    if text_format is None:
        return formats.line(key_separator)
    try:
        return formats.parse(text_format)
    except ValueError as error:
        fail(f"--format {error}", EXIT_USAGE)


async def _print_records(consumer: Consumer, maximum: int | None, to_line: formats.Print) -> None:
    printed = 0
    while maximum is None or printed < maximum:
        wanted = None if maximum is None else maximum - printed
        for records in (await consumer.poll(_POLL_MS, max_records=wanted)).values():
            for record in records:
                sys.stdout.buffer.write(to_line(record))
            printed += len(records)
        sys.stdout.buffer.flush()
