"""`quorumlog elect`: gives partitions another leader."""

from typing import Annotated, Any, Final

import typer

from quorumlog.cli.connect import Cluster, on_cluster
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, fail, say
from quorumlog.client import Admin, ErrorCode, KafkaError, TopicPartition
from quorumlog.client.descriptions import Election

_NOT_NEEDED: Final = ErrorCode.ELECTION_NOT_NEEDED.name
Outcomes = dict[TopicPartition, KafkaError | None]


@on_cluster
def elect(
    cluster: Cluster,
    preferred: Annotated[
        bool,
        typer.Option("--preferred", help="Elect the preferred leader: the first assigned replica."),
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Elect any live replica where a partition has no leader: records may be lost.",
        ),
    ] = False,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only partitions of this topic.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only this partition of the topic.")
    ] = None,
) -> None:
    """Elect the leaders of all partitions, of one topic or of one partition.

    Exit status 1: the cluster refused an election. A leader that stays is not a refusal.
    """
    if preferred == unclean:
        fail("give either --preferred or --unclean", EXIT_USAGE)
    if partition is not None and topic is None:
        fail("--partition needs the topic: add --topic NAME", EXIT_USAGE)
    election: Election = "preferred" if preferred else "unclean"

    async def work(admin: Admin) -> Outcomes:
        wanted: list[TopicPartition] | None = None
        if topic is not None and partition is not None:
            wanted = [TopicPartition(topic, partition)]
        elif topic is not None:
            found = (await admin.describe_topics([topic]))[topic].partitions
            wanted = [TopicPartition(topic, index) for index in sorted(found)]
        return await admin.elect_leaders(wanted, election)

    outcomes = cluster.ask(work)
    rows = [_row(at, outcomes[at]) for at in sorted(outcomes)]
    lines = (f"{row['topic']}-{row['partition']}  {_said(row)}" for row in rows)
    cluster.outcome({"election": election, "partitions": rows}, *lines)
    refused = sum(row["error"] not in {None, _NOT_NEEDED} for row in rows)
    if not cluster.json:
        say(_summary(rows, refused))
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _row(at: TopicPartition, error: KafkaError | None) -> dict[str, Any]:
    return {
        "topic": at.topic,
        "partition": at.partition,
        "elected": error is None,
        "error": None if error is None else error.code.name,
        "message": None if error is None else str(error),
    }


def _said(row: dict[str, Any]) -> str:
    if row["elected"]:
        return "has a new leader"
    return "keeps its leader" if row["error"] == _NOT_NEEDED else str(row["message"])


def _summary(rows: list[dict[str, Any]], refused: int) -> str:
    elected = sum(row["elected"] for row in rows)
    return f"{elected} elected, {len(rows) - elected - refused} not needed, {refused} refused"
