"""`quorumlog produce | consume`: lines in, lines out."""

import asyncio
import sys
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.cluster_commands import DEFAULT_DIR, Dir
from quorumlog.cli.connect import Bootstrap, resolve, run
from quorumlog.cli.output import EXIT_USAGE, fail, say
from quorumlog.client import Consumer, ConsumerRecord, Delivery, Producer, TopicPartition

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

    async def work() -> int:
        count, waiting = 0, list[Delivery]()
        async with Producer(resolve(bootstrap, directory), acks=_ACKS[acks]) as producer:
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                key, value = _split(line.rstrip(b"\n"), key_separator)
                waiting.append(await producer.send(topic, value, key=key))
                count += 1
                if len(waiting) == _UNACKNOWLEDGED_MAX:
                    for delivery in waiting:
                        await delivery
                    waiting.clear()
            await producer.flush()
            for delivery in waiting:
                await delivery
        return count

    say(f"{run(work())} records acknowledged")


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

    async def work() -> None:
        consumer = Consumer(
            resolve(bootstrap, directory),
            group_id=group,
            auto_offset_reset="earliest" if start == "beginning" else "latest",
        )
        async with consumer:
            if group is None:
                found = await consumer.partitions_for(topic)
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
