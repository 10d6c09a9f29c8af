"""Moves groups at the target to the translated offsets of the source's groups."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quorumlog.client import Admin, KafkaError, OffsetAndMetadata, TopicPartition
from quorumlog.mirror.core.copies import Copies
from quorumlog.mirror.core.group_offsets import decide_commits, translated
from quorumlog.mirror.core.selection import Expressions
from quorumlog.mirror.reports import OnReport, Report

_AT_ONCE: Final = 8  # groups whose offsets are requested together


class MovedGroup(NamedTuple):
    """A group's offset in one partition: at the source, and in the copy."""

    copy: TopicPartition
    upstream: int
    downstream: OffsetAndMetadata


@dataclass(slots=True)
class GroupKeeper:
    """Commits for groups without members at the target; its decisions are in `core.group_offsets`.

    An error of one group is reported once, and the group is tried again the next time.
    source_end: returns the high watermark of a partition at the source, -1 if unknown.
    translated: each group's offsets at the target, as of the last `sync`.
    """

    source: Admin
    target: Admin
    copies: Copies
    groups: Expressions
    report: OnReport
    source_end: Callable[[TopicPartition], int]
    translated: dict[str, list[MovedGroup]] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)

    async def sync(self) -> int:
        """Commit once; return the number of groups that have translated offsets.

        Raises KafkaError if the source's groups cannot be listed.
        """
        listed = await self.source.list_consumer_groups()
        names = [one.group_id for one in listed if one.group_id in self.groups]
        self.translated = {}
        turns = asyncio.Semaphore(_AT_ONCE)

        async def in_turn(group: str) -> None:
            async with turns:
                await self._try(group)

        async with asyncio.TaskGroup() as tasks:
            for group in names:
                tasks.create_task(in_turn(group))
        for group in self._failed.keys() - {*names}:
            del self._failed[group]
        return len(self.translated)

    async def _try(self, group: str) -> None:
        try:
            await self._move(group)
        except KafkaError as error:
            if self._failed.get(group) != error.code.name:
                self._failed[group] = error.code.name
                message = f"its offsets are not committed at the target: {error}"
                self.report(Report(f"group {group}", message, is_loss=True))
        else:
            self._failed.pop(group, None)

    async def _move(self, group: str) -> None:
        committed = await self.source.list_consumer_group_offsets(group)
        wanted = translated(committed, self._translate)
        if not wanted:
            return
        self.translated[group] = [
            MovedGroup(copy, committed[place].offset, wanted[copy])
            for place, copy in self._copies_of(committed)
            if copy in wanted
        ]
        present = await self.target.list_consumer_group_offsets(group)
        if not decide_commits("Empty", wanted, present):
            return  # the target is as far: its state is of no interest
        described = await self.target.describe_consumer_groups([group])
        commits = decide_commits(described[group].state, wanted, present)
        if commits:
            await self.target.alter_consumer_group_offsets(group, commits)

    def _copies_of(
        self, places: Iterable[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, TopicPartition]]:
        for place in places:
            if place.topic in self.copies.topics:
                yield place, self.copies.copy_of(place)

    def _translate(self, place: TopicPartition, offset: int) -> tuple[TopicPartition, int] | None:
        return self.copies.translate(place, offset, self.source_end(place))
