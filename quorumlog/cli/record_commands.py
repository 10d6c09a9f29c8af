"""`quorumlog produce | consume`: lines in, lines out."""

import sys
from collections import deque
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.cluster_commands import DEFAULT_DIR, Dir
from quorumlog.cli.connect import Bootstrap, resolve, run
from quorumlog.cli.lines import read_lines
from quorumlog.cli.output import EXIT_USAGE, fail, say
from quorumlog.client import (
    Consumer,
    ConsumerRecord,
    Delivery,
    KafkaError,
    Producer,
    TopicPartition,
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]

_UNACKNOWLEDGED_MAX: Final = 10_000
_POLL_MS: Final = 500
_ACKS: Final[dict[str, Any]] = {"all": "all", "-1": "all", "1": 1, "0": 0}
_STARTS: Final = ("beginning", "end")


def produce(
    topic: Topic,
    key_separator: Annotated[
        str | None, typer.Option(help="Split each line into key and value here.")
    ] = None,
    acks: Annotated[str, typer.Option(help="all, 1 or 0.")] = "all",
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
) -> None:
    """Send each line of standard input as a record; return when all are acknowledged."""
    if acks not in _ACKS:
        fail(f"--acks {acks}: it is all, 1 or 0", EXIT_USAGE)

    addresses = resolve(bootstrap, directory)
    sent = _Sent()

    async def work() -> None:
        async with Producer(addresses, acks=_ACKS[acks]) as producer:
            async for lines in read_lines(sys.stdin.fileno()):
                for line in lines:
                    key, value = _split(line, key_separator)
                    await sent.add(await producer.send(topic, value, key=key))
            await producer.flush()
            await sent.settle(down_to=0)

    try:
        run(work())
    finally:  # also when one failed, or at a Ctrl-C: what is there, is there
        say(f"{sent.count()} records {'acknowledged' if acks != '0' else 'sent'}")


class _Sent:
    """The records on their way, in the order they were sent; at most `_UNACKNOWLEDGED_MAX`."""

    def __init__(self) -> None:
        self._settled = 0
        self._waiting = deque[Delivery]()

    async def add(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        if len(self._waiting) > _UNACKNOWLEDGED_MAX:
            await self.settle(down_to=_UNACKNOWLEDGED_MAX // 2)

    async def settle(self, *, down_to: int) -> None:
        """Wait until at most so many are on their way. Raises KafkaError for the first to fail."""
        while len(self._waiting) > down_to:
            await self._waiting[0]
            self._waiting.popleft()
            self._settled += 1

    def count(self) -> int:
        """Return how many were acknowledged."""
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


def consume(
    topic: Topic,
    group: Annotated[
        str | None, typer.Option(help="Join this group and go on where it stopped.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help="beginning or end, where the group has no position.")
    ] = "end",
    maximum: Annotated[
        int | None, typer.Option("--max", help="Stop after so many records.", min=1)
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="Print keys too, in front of this.")
    ] = None,
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
) -> None:
    """Print the records of a topic, a line each, until --max or Ctrl-C."""
    if start not in _STARTS:
        fail(f"--from {start}: it is beginning or end", EXIT_USAGE)

    addresses = resolve(bootstrap, directory)

    async def work() -> None:
        consumer = Consumer(
            addresses,
            group_id=group,
            auto_offset_reset="earliest" if start == "beginning" else "latest",
        )
        async with consumer:
            found = await consumer.partitions_for(topic)  # says so if there is no such topic
            if group is None:
                consumer.assign([TopicPartition(topic, index) for index in found])
            else:
                consumer.subscribe([topic])
            await _print_records(consumer, maximum, key_separator)

    run(work())


async def _print_records(
    consumer: Consumer, maximum: int | None, key_separator: str | None
) -> None:
    printed = 0
    while maximum is None or printed < maximum:
        wanted = None if maximum is None else maximum - printed
        for records in (await consumer.poll(_POLL_MS, max_records=wanted)).values():
            for record in records:
                sys.stdout.buffer.write(_line(record, key_separator))
            printed += len(records)
        sys.stdout.buffer.flush()


def _line(record: ConsumerRecord, key_separator: str | None) -> bytes:
    value = record.value or b""
    if key_separator is not None:
        value = (record.key or b"") + key_separator.encode() + value
    return value + b"\n"
