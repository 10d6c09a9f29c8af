"""Offsets of a group for `quorumlog groups`: its lag, and the targets of a reset."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from quorumlog.cli.offset_resets import LogEnds, Move, Reset, plan
from quorumlog.client import Admin, TopicPartition

IDLE: Final = frozenset({"Empty", "Dead"})  # the states of a group without members


async def lag_rows(admin: Admin, group: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the group's state, and a row for each committed or assigned partition.

    `committed`, `end` and `lag` are None without a committed offset or without the topic.
    """
    described = (await admin.describe_consumer_groups([group]))[group]
    committed = await admin.list_consumer_group_offsets(group)
    readers = {name: member for member in described.members for name in member.assignment}
    wanted = sorted({*committed, *readers})
    there = await _existing(admin, wanted)
    ends = await admin.list_offsets(dict.fromkeys(there, "latest"))
    rows = []
    for name in wanted:
        place, end = committed.get(name), ends.get(name)
        behind = None
        if place is not None and end is not None:
            behind = max(end.offset - place.offset, 0)
        rows.append(
            {
                "topic": name.topic,
                "partition": name.partition,
                "committed": None if place is None else place.offset,
                "end": None if end is None else end.offset,
                "lag": behind,
                "client": readers[name].client_id if name in readers else None,
                "member_id": readers[name].member_id if name in readers else None,
            }
        )
    return described.state, rows


async def _existing(admin: Admin, wanted: Collection[TopicPartition]) -> list[TopicPartition]:
    """Return the existing partitions of `wanted`: a topic may be deleted, or re-created smaller."""
    topics = {*await admin.list_topics(include_internal=True)} & {name.topic for name in wanted}
    described = await admin.describe_topics(sorted(topics))
    return [
        name
        for name in wanted
        if name.topic in described and name.partition in described[name.topic].partitions
    ]


async def decide_reset(
    admin: Admin, group: str, reset: Reset, topics: Mapping[str, list[int] | None]
) -> list[Move]:
    """Return each partition's move. `topics`: the partitions; empty: all committed partitions.

    Raises ValueError if the group has members, or a partition cannot be moved.
    """
    described = (await admin.describe_consumer_groups([group]))[group]
    if described.state not in IDLE:
        count = len(described.members)
        message = f"group {group} is {described.state} with {count} members: stop the members first"
        raise ValueError(message)
    committed = await admin.list_consumer_group_offsets(group)
    if not topics and not committed:
        raise ValueError(f"group {group} has no committed offsets: name the topics with --topic")
    wanted = await _named(admin, topics) if topics else sorted(committed)
    there = await _existing(admin, wanted)
    earliest = await admin.list_offsets(dict.fromkeys(there, "earliest"))
    latest = await admin.list_offsets(dict.fromkeys(there, "latest"))
    since = {}
    if reset.target == "time":
        since = await admin.list_offsets(dict.fromkeys(there, reset.value))
    ends = {
        name: LogEnds(
            earliest[name].offset, latest[name].offset, since[name].offset if name in since else -1
        )
        for name in there
    }
    return plan(reset, wanted, {name: one.offset for name, one in committed.items()}, ends)


async def _named(admin: Admin, topics: Mapping[str, list[int] | None]) -> list[TopicPartition]:
    described = await admin.describe_topics(topics)
    return [
        TopicPartition(topic, index)
        for topic, indexes in topics.items()
        for index in (sorted(described[topic].partitions) if indexes is None else indexes)
    ]
