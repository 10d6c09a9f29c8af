"""`quorumlog reassign`: moves the partitions of a topic to other brokers."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.connect import Bootstrap, ask_admin
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json
from quorumlog.cli.output import EXIT_USAGE, fail, outcome, say
from quorumlog.client import Admin, TopicPartition
from quorumlog.client.core.metadata_cache import PartitionView
from quorumlog.settings.servers import THROTTLED_RATE
from quorumlog.settings.topics import TopicConfig

POLL_S: Final = 0.2
STALE_S: Final = 5.0  # as long may a broker not have heard of what another one has confirmed
_THROTTLED: Final = TopicConfig.follower_replication_throttled_replicas.name
Targets = Mapping[TopicPartition, tuple[int, ...]]


def reassign(
    topic: Annotated[str, typer.Option(metavar="NAME", help="The topic to move.")],
    brokers: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Where every replica is to be, as 2,3,4."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Only this partition. Repeatable."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Go back to the replicas of before.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait until the replicas are in sync.")
    ] = False,
    throttle: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=1, help="Bytes a second for each broker that gains."),
    ] = None,
    bootstrap: Bootstrap = None,
    directory: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Move the partitions of a topic to other brokers, or cancel that.

    The preferred leaders are spread over the brokers, the first one's first. The command waits
    until all new replicas are in sync, and those that are not named have gone. A throttle lasts as
    long as the command.
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
        async with throttled(admin, topic, _gaining(found, targets), throttle):
            await admin.alter_partition_reassignments(targets)
            if not detach:
                await _until_moved(admin, topic, targets)
        shown = [{"partition": at.partition, "replicas": [*ids]} for at, ids in targets.items()]
        return {"topic": topic, "completed": not detach, "partitions": shown}

    done = ask_admin(bootstrap, directory, work)
    if cancel:
        indexes = [row["partition"] for row in done["partitions"]]
        told = f"cancelled: {topic} {indexes}" if indexes else f"nothing of {topic} is reassigned"
        outcome(done, told, json=json)
        return
    lines = (f"{row['partition']:>4}  replicas {row['replicas']}" for row in done["partitions"])
    outcome(done, *lines, json=json)


def _gaining(found: Mapping[int, PartitionView], targets: Targets) -> list[str]:
    """Return the replicas that partitions are to get, each as partition:broker."""
    return [
        f"{at.partition}:{broker}"
        for at, replicas in targets.items()
        for broker in replicas
        if at.partition in found and broker not in found[at.partition].replicas
    ]


@asynccontextmanager
async def throttled(
    admin: Admin, topic: str, gaining: list[str], rate: int | None
) -> AsyncIterator[None]:
    """Let these replicas (partition:broker) be fetched at `rate` bytes a second meanwhile.

    In the end the rate is again the one that was set for all brokers before.
    """
    if rate is None or not gaining:
        yield
        return
    before = (await admin.describe_configs("broker", "")).get(THROTTLED_RATE.name)
    former = None if before is None else before.value
    listed = {_THROTTLED: ",".join(gaining)}
    async with AsyncExitStack() as undo:
        await admin.alter_configs("topic", topic, append=listed)
        undo.push_async_callback(partial(admin.alter_configs, "topic", topic, subtract=listed))
        await admin.alter_configs("broker", "", {THROTTLED_RATE.name: rate})
        if former is None:
            take_back = partial(admin.alter_configs, "broker", "", delete=[THROTTLED_RATE.name])
        else:
            take_back = partial(admin.alter_configs, "broker", "", {THROTTLED_RATE.name: former})
        undo.push_async_callback(take_back)
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
    """Return when every partition is in sync where it is to be. Raises KafkaError if it will not.

    The two answers may be of brokers that know less than another: both must say that it is done.
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
            raise ValueError(f"{others[0]} was reassigned otherwise, or its move was cancelled")
        await asyncio.sleep(POLL_S)
