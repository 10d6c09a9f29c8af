"""One session of a mirror: its clients, and the tasks that keep topics and groups.

Any error of a cluster ends the session, and the next begins as a restarted process does: it fences,
reads the positions from the target, and goes on there. So there is one way to recover.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from quorumlog import clock
from quorumlog.client import Admin, Consumer, KafkaError
from quorumlog.mirror.core.copies import Copies
from quorumlog.mirror.core.position_records import (
    CHECKPOINT_KEY,
    GENERATION_KEY,
    Checkpoint,
    Generation,
)
from quorumlog.mirror.core.selection import (
    Expressions,
    TopicNames,
    loop_under_same_names,
    topic_names,
)
from quorumlog.mirror.dependencies import MirrorDependencies
from quorumlog.mirror.errors import MirrorFenced, MirrorLoop, MirrorRefused, TopicsStopped
from quorumlog.mirror.io.groups import GroupKeeper
from quorumlog.mirror.io.mm2_topics import Mm2Topics
from quorumlog.mirror.io.positions_topic import (
    PositionsReader,
    ensure_positions_topic,
    generations_at,
)
from quorumlog.mirror.io.pump import Progress, Pump
from quorumlog.mirror.io.topics import TopicKeeper
from quorumlog.mirror.reports import OnReport, Report
from quorumlog.mirror.settings import MirrorSettings

_PARTITION_FETCH_BYTES: Final = 2 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Session:
    """The clients and the tasks of one session.

    identity: of this mirror, for all sessions. `is_owner`: an earlier session wrote it, so another
    generation in the positions topic is of a newer mirror. `message_bytes`: the smallest
    max.message.bytes of the copies; None if it is unknown.
    """

    settings: MirrorSettings
    source: Admin
    target: Admin
    identity: Generation
    is_owner: bool
    message_bytes: int | None
    copies: Copies
    progress: Progress
    report: OnReport
    dependencies: MirrorDependencies
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _mm2: Mm2Topics | None = None

    async def run(self, on_begun: Callable[[], None]) -> None:
        """Copy until an error; with `once`, until all that the source had is copied.

        on_begun: called when this mirror owns the positions topic and has its positions. Raises
        KafkaError, MirrorError, SessionOver.
        """
        try:
            async with self._stack:
                pump, keeper = await self._begin()
                on_begun()
                groups = GroupKeeper(
                    self.source,
                    self.target,
                    self.copies,
                    Expressions(self.settings.groups, self.settings.exclude_groups),
                    self.report,
                    pump.source_end,
                )
                async with asyncio.TaskGroup() as tasks:
                    others = [
                        tasks.create_task(self._keep_topics(keeper, pump)),
                        tasks.create_task(self._keep_groups(groups, pump)),
                    ]
                    if self._mm2 is not None:
                        others.append(tasks.create_task(self._mm2.beat()))
                    stopped: TopicsStopped | None = None
                    try:
                        await pump.run()
                    except TopicsStopped as error:  # `status` shows the reasons afterwards
                        stopped = error
                    for task in others:
                        task.cancel()
                if self.settings.once:  # the task may have ended before it did so
                    await keeper.configure_all()
                await self._checkpoint(groups, pump)
                await pump.write_owed()
                if stopped is not None:
                    raise stopped
        except BaseExceptionGroup as group:
            raise _first(group) from group

    async def _begin(self) -> tuple[Pump, TopicKeeper]:
        """Fence older mirrors, restore the positions and make the topics; then copying may begin.

        The settings are checked before the fence: a mirror that is refused must not end another.
        """
        settings, topic = self.settings, self.settings.positions_topic
        await self._names()
        brokers = len((await self.target.describe_cluster()).nodes)
        await ensure_positions_topic(self.target, topic, brokers)
        consumer = Consumer(
            **settings.source,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_bytes=settings.poll_bytes,
            isolation_level="read_committed",
            max_partition_fetch_bytes=min(settings.poll_bytes, _PARTITION_FETCH_BYTES),
        )
        await self._stack.enter_async_context(consumer)
        if settings.mm2_compatible:
            self._mm2 = Mm2Topics(settings, self.source, self.target)
            self._stack.push_async_callback(self._mm2.stop)
        transfer = self.dependencies.new_transfer(settings, self.copies, self.message_bytes)
        self._stack.push_async_callback(transfer.stop)
        async with PositionsReader(settings.target, topic) as reader:
            await reader.read()
            self._check_owner(reader.generation)
            await transfer.start()
            contents = await reader.read()
        await transfer.write([(GENERATION_KEY, self.identity)])
        names = await self._names()  # again: the opposite mirror may have started meanwhile
        self.copies.restore(contents, names)
        if self._mm2 is not None:
            await self._mm2.start()
        keeper = TopicKeeper(settings, self.source, self.target, self.copies, names, self.report)
        await keeper.refresh()
        pump = Pump(settings, consumer, keeper, transfer, self.copies, self.progress, self.report)
        return pump, keeper

    def _check_owner(self, found: Generation | None) -> None:
        """Raise MirrorFenced after a newer mirror, MirrorRefused for another source's alias."""
        if found is None or found.instance == self.identity.instance:
            return
        alias, topic = self.settings.alias, self.settings.positions_topic
        if self.is_owner:
            raise MirrorFenced(
                f"another mirror with the alias {alias!r} has started on the target; only one"
                " may run"
            )
        known = {found.source_cluster, self.identity.source_cluster}
        if len(known) == 2 and None not in known:
            raise MirrorRefused(
                f"{topic} on the target belongs to a mirror of cluster {found.source_cluster},"
                f" not of {self.identity.source_cluster}: give this mirror another alias"
            )

    async def _names(self) -> TopicNames:
        """Return the topics to copy. Raises MirrorLoop."""
        mirrors_here = await generations_at(self.source, self.settings.source)
        target_cluster = self.identity.target_cluster
        reason = loop_under_same_names(mirrors_here, target_cluster, self.identity)
        if reason is not None:
            raise MirrorLoop(reason)
        return topic_names(self.settings, mirrors_here, target_cluster)

    # --- tasks beside the pump ---

    async def _keep_topics(self, keeper: TopicKeeper, pump: Pump) -> None:
        configured_at_ms: int | None = None
        while True:
            now_ms = clock.monotonic_ms()
            interval_ms = self.settings.config_interval_ms
            if configured_at_ms is None or now_ms - configured_at_ms >= interval_ms:
                configured_at_ms = now_ms
                await keeper.configure_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.refresh_interval_ms / 1000):
                    await pump.is_stale.wait()
            pump.is_stale.clear()
            await keeper.refresh()

    async def _keep_groups(self, groups: GroupKeeper, pump: Pump) -> None:
        while True:
            await asyncio.sleep(self.settings.group_interval_ms / 1000)
            await self._checkpoint(groups, pump)

    async def _checkpoint(self, groups: GroupKeeper, pump: Pump) -> None:
        """Move the groups, and have the pump write the runs and the time."""
        count = 0
        try:
            count = await groups.sync()
        except KafkaError as error:
            if not error.passing:
                raise
            self.report(Report("groups", f"not moved this time: {error}", is_loss=True))
        checkpoint = Checkpoint(
            time_ms=clock.wall_clock_ms(), groups=count, stopped=self.copies.stopped()
        )
        pump.owe([*self.copies.unsaved_runs(), (CHECKPOINT_KEY, checkpoint)])
        if self._mm2 is not None:
            await self._mm2.write(self.copies.newest_runs(), groups.translated)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group of tasks; the others followed from it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
