"""`quorumlog topics`: create, list, describe, grow, delete, delete-records."""

from typing import Annotated, Any

import typer

from quorumlog.cli.connect import Bootstrap, resolve, run
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json, TopicSettings
from quorumlog.cli.output import EXIT_USAGE, data, document, fail, parse_settings
from quorumlog.client import Admin, NewTopic, TopicPartition

app = typer.Typer(
    help="Create, list, describe, grow and delete topics.",
    no_args_is_help=True,
    subcommand_metavar="COMMAND",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option(metavar="N", help="How many; -1 takes the brokers' default.")
    ] = -1,
    replication: Annotated[
        int,
        typer.Option(metavar="N", help="Replicas of each; -1 takes the brokers' default."),
    ] = -1,
    config: TopicSettings = None,
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Create a topic."""
    configs = parse_settings(config or [])
    addresses = resolve(bootstrap, directory)

    async def work() -> None:
        async with Admin(addresses) as admin:
            await admin.create_topics(
                [
                    NewTopic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=replication,
                        configs=configs,
                    )
                ]
            )

    run(work())
    if json:
        document({"created": name})
    else:
        data(f"created {name}")


@app.command(name="list")
def list_topics(
    bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """List the topics, without the internal ones."""
    addresses = resolve(bootstrap, directory)

    async def work() -> list[str]:
        async with Admin(addresses) as admin:
            return await admin.list_topics()

    names = run(work())
    if json:
        document({"topics": names})
        return
    for name in names:
        data(name)


@app.command()
def describe(
    name: Name, bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """Show the leader, replicas and ISR of each partition."""
    addresses = resolve(bootstrap, directory)

    async def work() -> dict[str, Any]:
        async with Admin(addresses) as admin:
            topic = (await admin.describe_topics([name]))[name]
        return {
            "name": topic.name,
            "partitions": [
                {
                    "partition": index,
                    "leader": view.leader_id,
                    "leader_epoch": view.leader_epoch,
                    "replicas": list(view.replicas),
                    "isr": list(view.isr),
                }
                for index, view in sorted(topic.partitions.items())
            ],
        }

    described = run(work())
    if json:
        document(described)
        return
    for row in described["partitions"]:
        data(
            f"{row['partition']:>4}  leader {row['leader']}  epoch {row['leader_epoch']}"
            f"  isr {row['isr']}  replicas {row['replicas']}"
        )


@app.command()
def delete(
    name: Name, bootstrap: Bootstrap = None, directory: Dir = DEFAULT_DIR, json: Json = False
) -> None:
    """Delete a topic and its records."""
    addresses = resolve(bootstrap, directory)

    async def work() -> None:
        async with Admin(addresses) as admin:
            await admin.delete_topics([name])

    run(work())
    if json:
        document({"deleted": name})
    else:
        data(f"deleted {name}")


@app.command()
def grow(
    name: Name,
    partitions: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many it is to have in total.")
    ],
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Give a topic more partitions. Keys may map to other partitions from then on.

    \b
    Example:
      quorumlog topics grow orders --partitions 12
    """
    addresses = resolve(bootstrap, directory)

    async def work() -> None:
        async with Admin(addresses) as admin:
            await admin.create_partitions({name: partitions})

    run(work())
    if json:
        document({"name": name, "partitions": partitions})
    else:
        data(f"{name} has {partitions} partitions")


@app.command(name="delete-records")
def delete_records(
    name: Name,
    before: Annotated[
        str,
        typer.Option(metavar="N|end", help="The offset to be the first that is left; or all."),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Only this partition. Repeatable."),
    ] = None,
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Delete the oldest records of a topic, up to an offset. The topic stays.

    \b
    Examples:
      quorumlog topics delete-records orders --before 1000 --partition 0
      quorumlog topics delete-records orders --before end
    """
    if before != "end" and not before.isdecimal():
        fail(f"--before {before}: it is an offset, or end", EXIT_USAGE)
    offset = -1 if before == "end" else int(before)
    addresses = resolve(bootstrap, directory)

    async def work() -> list[dict[str, int]]:
        async with Admin(addresses) as admin:
            found = (await admin.describe_topics([name]))[name].partitions
            wanted = [TopicPartition(name, index) for index in partition or sorted(found)]
            starts = await admin.delete_records(dict.fromkeys(wanted, offset))
        return [{"partition": one.partition, "start": starts[one]} for one in wanted]

    rows = run(work())
    if json:
        document({"name": name, "partitions": rows})
        return
    for row in rows:
        data(f"{row['partition']:>4}  starts at {row['start']}")
