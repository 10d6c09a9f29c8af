"""`quorumlog reassign`: moves the partitions of a topic to other brokers."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.connect import Cluster, on_cluster
from quorumlog.cli.output import EXIT_USAGE, fail, say
from quorumlog.client import Admin, TopicPartition
from quorumlog.client.core.metadata_cache import PartitionView
from quorumlog.settings.servers import FOLLOWER_THROTTLED_RATE, LEADER_THROTTLED_RATE
from quorumlog.settings.topics import TopicConfig

POLL_S: Final = 0.2
STALE_S: Final = 5.0  # maximum delay of a broker's metadata behind another broker's
_GIVING: Final = TopicConfig.leader_replication_throttled_replicas.name
_GAINING: Final = TopicConfig.follower_replication_throttled_replicas.name
_RATES: Final = (LEADER_THROTTLED_RATE.name, FOLLOWER_THROTTLED_RATE.name)
Targets = Mapping[TopicPartition, tuple[int, ...]]


@on_cluster
def reassign(
    cluster: Cluster,
    topic: Annotated[str, typer.Option(metavar="NAME", help="Topic to move.")],
    brokers: Annotated[
        str | None, typer.Option(metavar="IDS", help="Brokers of the replicas, as 2,3,4.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Only this partition. Repeatable.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Return to the earlier replicas.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait until the replicas are in sync.")
    ] = False,
    throttle: Annotated[
        int | None, typer.Option(metavar="BYTES", min=1, help="Bytes a second of each broker.")
    ] = None,
) -> None:
    """Move the partitions of a topic to other brokers, or cancel the move.

    Preferred leaders rotate over the brokers, starting with the first. The command waits until
    all new replicas are in sync and the replaced replicas are removed. A throttle lasts as long
    as the command.
    """
    if cancel == (brokers is not None):
        fail("give either --brokers or --cancel", EXIT_USAGE)
    if throttle is not None and (cancel or detach):
        fail("--throttle lasts as long as the command: not with --detach or --cancel", EXIT_USAGE)
    wanted = [] if brokers is None else _ids(brokers)

    async def work(admin: Admin) -> dict[str, Any]:
        if cancel:
            return await _cancel(admin, topic, partition)
        found = (await admin.describe_topics([topic]))[topic].partitions
        targets = {
            TopicPartition(topic, index): _rotated(wanted, index)
            for index in partition or sorted(found)
        }
        async with throttled(admin, topic, moving_replicas(found, targets), throttle):
            await admin.alter_partition_reassignments(targets)
            if not detach:
                await _until_moved(admin, topic, targets)
        shown = [{"partition": at.partition, "replicas": [*ids]} for at, ids in targets.items()]
        return {"topic": topic, "completed": not detach, "partitions": shown}

    done = cluster.ask(work)
    if cancel:
        indexes = [row["partition"] for row in done["partitions"]]
        told = (
            f"cancelled: {topic} {indexes}" if indexes else f"{topic} has no reassignment to cancel"
        )
        cluster.outcome(done, told)
        return
    lines = (f"{row['partition']:>4}  replicas {row['replicas']}" for row in done["partitions"])
    cluster.outcome(done, *lines)


def moving_replicas(found: Mapping[int, PartitionView], targets: Targets) -> dict[str, str]:
    """Return the old and new replicas of partitions that gain some, by throttle setting."""
    giving, gaining = [], []
    for at, replicas in targets.items():
        there_are = found[at.partition].replicas if at.partition in found else replicas
        if new := [broker for broker in replicas if broker not in there_are]:
            gaining += [f"{at.partition}:{broker}" for broker in new]
            giving += [f"{at.partition}:{broker}" for broker in there_are]
    return {_GIVING: ",".join(giving), _GAINING: ",".join(gaining)} if gaining else {}


@asynccontextmanager
async def throttled(
    admin: Admin, topic: str, moving: Mapping[str, str], rate: int | None
) -> AsyncIterator[None]:
    """Limit the copying of these replicas to `rate` bytes a second inside the block.

    `moving`: the replicas by throttle setting. At the end, the brokers' earlier rates return.
    """
    if rate is None or not moving:
        yield
        return
    there_are = await admin.describe_configs("broker", "")
    before = {name: there_are[name].value or "" for name in _RATES if name in there_are}
    unset = [name for name in _RATES if name not in before]
    async with AsyncExitStack() as undo:
        await admin.alter_configs("topic", topic, append=moving)
        undo.push_async_callback(partial(admin.alter_configs, "topic", topic, subtract=moving))
        await admin.alter_configs("broker", "", dict.fromkeys(_RATES, rate))
        undo.push_async_callback(partial(admin.alter_configs, "broker", "", before, delete=unset))
        yield


def _ids(text: str) -> list[int]:
    ids = [part.strip() for part in text.split(",")]
    if not all(one.isdecimal() for one in ids) or len({*map(int, ids)}) < len(ids):
        fail(f"--brokers {text}: write different ids, with commas between them", EXIT_USAGE)
    return list(map(int, ids))


def _rotated(brokers: list[int], index: int) -> tuple[int, ...]:
    shift = index % len(brokers)
    return (*brokers[shift:], *brokers[:shift])


async def _cancel(admin: Admin, topic: str, partitions: list[int] | None) -> dict[str, Any]:
    ongoing = await admin.list_partition_reassignments()
    cancelled = [
        at
        for at in sorted(ongoing)
        if at.topic == topic and (not partitions or at.partition in partitions)
    ]
    if cancelled:
        await admin.alter_partition_reassignments(dict.fromkeys(cancelled))
    shown = [{"partition": at.partition} for at in cancelled]
    return {"topic": topic, "cancelled": True, "partitions": shown}


async def _until_moved(admin: Admin, topic: str, targets: Targets) -> None:
    """Return when every partition's targets are in sync. Raises ValueError if they will not be.

    Either response may come from a broker with old metadata: both must show the end.
    """
    moved = -1
    lost_since: float | None = None
    while True:
        ongoing = await admin.list_partition_reassignments(targets)
        found = (await admin.describe_topics([topic]))[topic].partitions
        waits = [
            at
            for at, replicas in targets.items()
            if at in ongoing
            or tuple(found[at.partition].replicas) != replicas
            or not {*replicas} <= {*found[at.partition].isr}
        ]
        if len(targets) - len(waits) != moved:
            moved = len(targets) - len(waits)
            say(f"{moved} of {len(targets)} partitions have moved")
        if not waits:
            return
        others = [
            at
            for at in waits
            if at not in ongoing and {*found[at.partition].replicas} != {*targets[at]}
        ]
        now_s = time.monotonic()
        lost_since = (lost_since or now_s) if others else None
        if lost_since is not None and now_s - lost_since > STALE_S:
            raise ValueError(f"{others[0]}: another command changed or cancelled the reassignment")
        await asyncio.sleep(POLL_S)
