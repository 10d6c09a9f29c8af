"""`quorumlog transactions`: list, describe, find-hanging, abort. Source: KIP-664."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import command_group, parse_duration_ms
from quorumlog.cli.output import table
from quorumlog.client import TopicPartition
from quorumlog.clock import wall_clock_ms

if TYPE_CHECKING:
    from quorumlog.client import Admin
    from quorumlog.client.descriptions import ProducerStateDescription

app = command_group("Show transactions, and abort a hanging one.")

_HANGING: Final = ("topic", "partition", "producer_id", "producer_epoch", "start_offset", "idle_ms")


@cluster_command(app, "list")
def list_transactions(
    cluster: Cluster,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Only this state: Ongoing, CompleteCommit, ... Repeatable."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="RE2", help="Only ids that match this regular expression in full."),
    ] = None,
) -> None:
    """List the transactional ids with their states.

    \b
    Examples:
      quorumlog transactions list
      quorumlog transactions list --state Ongoing --json
      quorumlog transactions list --pattern 'copy-[0-9]+'
    """
    listed = cluster.ask(lambda admin: admin.transactions.list(states=state or (), pattern=pattern))
    found = [asdict(one) for one in listed]
    rows = [list(one.values()) for one in found]
    names = ("TRANSACTIONAL ID", "STATE", "PRODUCER ID", "COORDINATOR")
    lines = table(names, rows)
    cluster.outcome({"transactions": found}, *lines, empty="no transactional ids")


@cluster_command(app)
def describe(
    cluster: Cluster,
    transactional_id: Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")],
) -> None:
    """Show a coordinator's state of a transactional id.

    \b
    Example:
      quorumlog transactions describe copy-1
    """
    described = cluster.ask(lambda admin: admin.transactions.describe([transactional_id]))
    found = asdict(described[transactional_id])
    partitions = [str(TopicPartition(*one)) for one in found.pop("partitions")]
    document = {"transactional_id": transactional_id, **found, "partitions": partitions}
    lines = [f"{name.replace('_', ' ')}: {value}" for name, value in found.items()]
    lines.append(f"partitions: {' '.join(partitions) or 'none'}")
    cluster.outcome(document, transactional_id, *(f"  {line}" for line in lines))


@cluster_command(app, "find-hanging")
def find_hanging(
    cluster: Cluster,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this topic. Repeatable.")
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Minimum time since the producer's last write to the partition."
        ),
    ] = "15m",
) -> None:
    """Find transactions that no coordinator will end.

    They are open in a partition, and hold back read_committed consumers. Transactions that a
    coordinator still tracks are not shown: it aborts them when they time out.

    \b
    Examples:
      quorumlog transactions find-hanging
      quorumlog transactions find-hanging --topic orders --older-than 1m --json
    """
    idle_ms = parse_duration_ms(older_than)
    found = cluster.ask(lambda admin: _hanging(admin, topic, idle_ms))
    rows = [[one[name] for name in _HANGING] for one in found]
    names = [name.replace("_", " ").upper() for name in _HANGING]
    lines = table(names, rows)
    cluster.outcome({"hanging": found}, *lines, empty="no transaction hangs")


async def _hanging(admin: "Admin", names: list[str] | None, idle_ms: int) -> list[dict[str, Any]]:
    topics = await admin.describe_topics(names)
    partitions = [
        TopicPartition(name, index) for name in topics for index in topics[name].partitions
    ]
    now_ms = wall_clock_ms()
    idle = [
        (at, one)
        for at, producers in (await admin.describe_producers(partitions)).items()
        for one in producers
        if one.current_txn_start_offset >= 0 and now_ms - one.last_timestamp_ms >= idle_ms
    ]
    if not idle:
        return []
    ids = {one.producer_id for _, one in idle}
    listed = await admin.transactions.list(producer_ids=sorted(ids))
    known = await admin.transactions.describe([one.transactional_id for one in listed])
    ending = {(one.producer_id, at) for one in known.values() for at in one.partitions}
    return [
        {
            "topic": at.topic,
            "partition": at.partition,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "start_offset": one.current_txn_start_offset,
            "idle_ms": now_ms - one.last_timestamp_ms,
        }
        for at, one in sorted(idle, key=lambda found: found[0])
        if (one.producer_id, at) not in ending
    ]


@cluster_command(app)
def abort(
    cluster: Cluster,
    topic: Annotated[str, typer.Option(metavar="NAME", help="The topic.")],
    partition: Annotated[int, typer.Option(metavar="N", min=0, help="The partition.")],
    start_offset: Annotated[
        int,
        typer.Option(
            metavar="OFFSET", min=0, help="First offset of the transaction: see find-hanging."
        ),
    ],
) -> None:
    """Abort a transaction in one partition.

    The command bypasses the coordinator. Use it only for a hanging transaction: the coordinator
    may still commit any other transaction in its other partitions.

    \b
    Example:
      quorumlog transactions abort --topic orders --partition 0 --start-offset 40
    """
    at = TopicPartition(topic, partition)

    async def work(admin: "Admin") -> "ProducerStateDescription":
        producers = (await admin.describe_producers([at]))[at]
        found = [one for one in producers if one.current_txn_start_offset == start_offset]
        if not found:
            raise ValueError(f"{at} has no open transaction with first offset {start_offset}")
        [one] = found
        await admin.transactions.abort(
            at, one.producer_id, one.producer_epoch, max(one.coordinator_epoch, 0)
        )
        return one

    one = cluster.ask(work)
    done = {
        "topic": topic,
        "partition": partition,
        "start_offset": start_offset,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
    }
    cluster.outcome(done, f"{at}: aborted the transaction of producer {one.producer_id}")
