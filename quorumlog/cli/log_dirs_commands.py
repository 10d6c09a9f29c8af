"""`quorumlog log-dirs`: describe, move."""

import asyncio
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import command_group
from quorumlog.cli.output import say, table
from quorumlog.client import Admin, TopicPartition
from quorumlog.client.descriptions import LogDirDescription
from quorumlog.wire.codec.error_codes import ErrorCode

app = command_group("Show the log directories of brokers, and move replicas between them.")

POLL_S: Final = 0.2
_COLUMNS: Final = ("broker", "log_dir", "topic", "partition", "size_bytes", "offset_lag", "state")
_HEADERS: Final = ("BROKER", "LOG DIR", "TOPIC", "PARTITION", "BYTES", "LAG", "STATE")
Row = dict[str, Any]


@cluster_command(app)
def describe(
    cluster: Cluster,
    broker: Annotated[
        list[int] | None, typer.Option(metavar="ID", min=0, help="Only this broker. Repeatable.")
    ] = None,
) -> None:
    """Show each directory with its replicas.

    A moving replica has two rows. `moving` marks the target directory; its LAG counts the records
    left to copy.

    \b
    Examples:
      quorumlog log-dirs describe
      quorumlog log-dirs describe --broker 1 --json
    """
    found = cluster.ask(lambda admin: admin.describe_log_dirs(broker))
    shown = {
        str(broker_id): [_document(path, one) for path, one in sorted(directories.items())]
        for broker_id, directories in sorted(found.items())
    }
    rows = [
        {"broker": broker_id, "log_dir": one["log_dir"], **replica}
        for broker_id, directories in shown.items()
        for one in directories
        for replica in one["replicas"] or [_empty(one)]
    ]
    lines = table(_HEADERS, [[row[name] for name in _COLUMNS] for row in rows])
    cluster.outcome({"brokers": shown}, *lines)


@cluster_command(app)
def move(
    cluster: Cluster,
    topic: Annotated[str, typer.Option(metavar="NAME", help="The topic.")],
    broker: Annotated[int, typer.Option(metavar="ID", min=0, help="Broker of the replicas.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Target log directory of the broker, as `describe` shows it."
        ),
    ],
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Only this partition. Repeatable.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait until the replicas have moved.")
    ] = False,
) -> None:
    """Move replicas to another log directory.

    Moves all replicas of the topic on the broker, or only the named partitions. The replica's
    current path cancels its move; another path redirects it. The command waits for all moves.

    \b
    Examples:
      quorumlog log-dirs move --topic orders --broker 1 --to /disk2
      quorumlog log-dirs move --topic orders --partition 0 --broker 1 --to /disk2 --detach
    """

    async def work(admin: Admin) -> list[TopicPartition]:
        described = (await admin.describe_topics([topic]))[topic].partitions
        held = [index for index, one in described.items() if broker in one.replicas]
        targets = [TopicPartition(topic, index) for index in partition or sorted(held)]
        if not targets:
            raise ValueError(f"broker {broker} has no replica of {topic}")
        paths = (await admin.describe_log_dirs([broker]))[broker]
        if to not in paths:
            raise ValueError(f"broker {broker} has no log directory {to}: {', '.join(paths)}")
        await admin.alter_replica_log_dirs(broker, dict.fromkeys(targets, to))
        if not detach:
            await _until_moved(admin, broker, to, targets)
        return targets

    moved = cluster.ask(work)
    done = {
        "topic": topic,
        "broker": broker,
        "log_dir": to,
        "completed": not detach,
        "partitions": [at.partition for at in moved],
    }
    state = "started to move to" if detach else "now in"
    cluster.outcome(done, *(f"{at.partition:>4}  {state} {to}" for at in moved))


async def _until_moved(admin: Admin, broker: int, to: str, targets: list[TopicPartition]) -> None:
    """Return when all replicas have moved. Raises ValueError if a replica stops moving."""
    told = ""
    while True:
        there = (await admin.describe_log_dirs([broker]))[broker][to].replicas
        copies = [there[at] for at in targets if at in there and there[at].is_future]
        moved = [at for at in targets if at in there and not there[at].is_future]
        lag = sum(one.offset_lag for one in copies)
        now = f"{len(moved)} of {len(targets)} replicas have moved"
        if now + str(lag) != told:
            told = now + str(lag)
            say(f"{now}, {lag} records left to copy" if lag else now)
        if len(moved) == len(targets):
            return
        lost = [at for at in targets if at not in there]
        if lost:
            raise ValueError(f"{lost[0]} stopped moving to {to}: see the broker's log")
        await asyncio.sleep(POLL_S)


def _document(path: str, one: LogDirDescription) -> Row:
    error = None if one.error_code == ErrorCode.NONE else ErrorCode(one.error_code).name
    replicas = [
        {
            "topic": at.topic,
            "partition": at.partition,
            "size_bytes": replica.size_bytes,
            "offset_lag": replica.offset_lag,
            "state": "moving" if replica.is_future else "current",
        }
        for at, replica in sorted(one.replicas.items())
    ]
    return {
        "log_dir": path,
        "error": error,
        "total_bytes": one.total_bytes,
        "usable_bytes": one.usable_bytes,
        "replicas": replicas,
    }


def _empty(one: Row) -> Row:
    nothing = dict.fromkeys(("topic", "partition", "size_bytes", "offset_lag"), "-")
    return {**nothing, "state": one["error"] or "empty"}
