"""`quorumlog topics`: create, list, describe, grow, delete, delete-records."""

import asyncio
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.config_commands import OF_THE_TOPIC
from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import Internal, TopicSettings, command_group
from quorumlog.cli.output import EXIT_USAGE, fail, parse_settings, say
from quorumlog.cli.status_lines import partition_line
from quorumlog.client import Admin, KafkaError, NewTopic, TopicPartition
from quorumlog.client.descriptions import ClusterDescription, TopicDescription
from quorumlog.storage.io.checkpoints import uuid_to_text

app = command_group("Create, list, describe, grow and delete topics.")

QUORUM_TIMEOUT_S: Final = 2.0  # longer than an election
Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]


@cluster_command(app)
def create(
    cluster: Cluster,
    name: Name,
    partitions: Annotated[
        int, typer.Option(metavar="N", help="Number of partitions; -1: the brokers' default.")
    ] = -1,
    replication: Annotated[
        int, typer.Option(metavar="N", help="Replicas of each partition; -1: the brokers' default.")
    ] = -1,
    config: TopicSettings = None,
) -> None:
    """Create a topic."""
    topic = NewTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        configs=parse_settings(config or []),
    )
    cluster.ask(lambda admin: admin.create_topics([topic]))
    cluster.outcome({"created": name}, f"created {name}")


@cluster_command(app, "list")
def list_topics(cluster: Cluster, internal: Internal = False) -> None:
    """List the topics, without the internal ones."""
    names = cluster.ask(lambda admin: admin.list_topics(include_internal=internal))
    empty = "no topics" if internal else "only internal topics"
    cluster.outcome({"topics": names}, *names, empty=empty)


@cluster_command(app)
def describe(cluster: Cluster, name: Name) -> None:
    """Show a topic's id, settings and partitions.

    One broker answers. Without an active controller it shows its last state, and stderr has a
    warning. In a cluster with racks, each partition has the racks of its live replicas.
    """

    async def work(
        admin: Admin,
    ) -> tuple[TopicDescription, dict[str, str | None], bool, ClusterDescription]:
        found, configs, has_quorum, live = await asyncio.gather(
            admin.describe_topics([name]),
            admin.describe_configs("topic", name),
            _has_quorum(admin),
            admin.describe_cluster(),
        )
        own = {key: one.value for key, one in configs.items() if one.source == OF_THE_TOPIC}
        return found[name], dict(sorted(own.items())), has_quorum, live

    topic, own, has_quorum, live = cluster.ask(work)
    if not has_quorum:
        say("NO QUORUM: no active controller answers; below is the last state of one broker")
    rows: list[dict[str, Any]] = [
        {
            "partition": index,
            "leader": view.leader_id,
            "leader_epoch": view.leader_epoch,
            "replicas": list(view.replicas),
            "racks": [live.rack(broker_id) for broker_id in view.replicas],
            "isr": list(view.isr),
            "elr": view.elr,
            "last_known_elr": view.last_known_elr,
        }
        for index, view in sorted(topic.partitions.items())
    ]
    topic_id = uuid_to_text(topic.topic_id)
    settings = ", ".join(f"{key}={value}" for key, value in own.items())
    title = f"{topic.name}  id {topic_id}  {settings or 'no settings of its own'}"
    lines = (partition_line(row["partition"], row) for row in rows)
    described = {
        "name": topic.name,
        "topic_id": topic_id,
        "configs": own,
        "has_quorum": has_quorum,
        "partitions": rows,
    }
    cluster.outcome(described, title, *lines)


async def _has_quorum(admin: Admin) -> bool:
    """Return whether the metadata quorum's leader responds in time; True if unsupported."""
    try:
        async with asyncio.timeout(QUORUM_TIMEOUT_S):
            await admin.describe_quorum()
    except TimeoutError:
        return False
    except KafkaError as error:
        return not error.passing
    return True


@cluster_command(app)
def delete(cluster: Cluster, name: Name) -> None:
    """Delete a topic and its records."""
    cluster.ask(lambda admin: admin.delete_topics([name]))
    cluster.outcome({"deleted": name}, f"deleted {name}")


@cluster_command(app)
def grow(
    cluster: Cluster,
    name: Name,
    partitions: Annotated[
        int, typer.Option(metavar="N", min=1, help="New total number of partitions.")
    ],
) -> None:
    """Add partitions to a topic. Keys may then map to other partitions.

    \b
    Example:
      quorumlog topics grow orders --partitions 12
    """
    cluster.ask(lambda admin: admin.create_partitions({name: partitions}))
    grown = {"name": name, "partitions": partitions}
    cluster.outcome(grown, f"{name} has {partitions} partitions")


@cluster_command(app, "delete-records")
def delete_records(
    cluster: Cluster,
    name: Name,
    before: Annotated[
        str,
        typer.Option(metavar="N|end", help="Delete up to this offset (exclusive), or all records."),
    ],
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Only this partition. Repeatable.")
    ] = None,
) -> None:
    """Delete the oldest records of a topic, up to an offset. The topic stays.

    \b
    Examples:
      quorumlog topics delete-records orders --before 1000 --partition 0
      quorumlog topics delete-records orders --before end
    """
    if before != "end" and not before.isdecimal():
        fail(f"--before {before}: write an offset, or end", EXIT_USAGE)
    offset = -1 if before == "end" else int(before)

    async def work(admin: Admin) -> list[dict[str, int]]:
        found = (await admin.describe_topics([name]))[name].partitions
        wanted = [TopicPartition(name, index) for index in partition or sorted(found)]
        starts = await admin.delete_records(dict.fromkeys(wanted, offset))
        return [{"partition": one.partition, "start": starts[one]} for one in wanted]

    rows = cluster.ask(work)
    lines = (f"{row['partition']:>4}  starts at {row['start']}" for row in rows)
    cluster.outcome({"name": name, "partitions": rows}, *lines)
