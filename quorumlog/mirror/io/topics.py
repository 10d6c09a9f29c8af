"""Compares the topics of both sides, and creates, grows and configures the copies.

Their ACLs are copied on request.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog import clock
from quorumlog.client import AclFilter, Admin, ErrorCode, KafkaError, NewTopic, TopicPartition
from quorumlog.client.descriptions import TopicDescription
from quorumlog.client.errors import DENIED
from quorumlog.mirror.core.copies import Copies
from quorumlog.mirror.core.selection import TopicNames
from quorumlog.mirror.core.topic_acls import missing_acls
from quorumlog.mirror.core.topic_plan import (
    TopicFacts,
    TopicIds,
    TopicPlan,
    copied_configs,
    plan_configs,
    plan_topic,
)
from quorumlog.mirror.reports import OnReport, Report
from quorumlog.mirror.settings import MirrorSettings

GONE: Final = "the source has the topic no longer, or hides it from this user; its copy stays"
_LOOKS: Final = 50
_LOOK_MS: Final = 100
_TOPIC_ACLS: Final = AclFilter(resource_type="topic", pattern_type="literal")
_RAISING: Final = DENIED - {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


@dataclass(slots=True)
class TopicKeeper:
    """Keeps the copies' topics like the source's; its decisions are in `core.topic_plan`.

    An error of one topic stops that topic until a later refresh succeeds; the others go on.
    lock: held while a topic's positions may be forgotten; the pump holds it while it copies.
    names_at_source: of all topics, as of the last refresh.
    """

    settings: MirrorSettings
    source: Admin
    target: Admin
    copies: Copies
    names: TopicNames
    report: OnReport
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    names_at_source: tuple[str, ...] = ()
    _lacks_acls: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # of refreshes

    async def refresh(self) -> None:
        """Compare the topics of both sides once, and follow the source.

        Raises KafkaError if the metadata of a side cannot be read.
        """
        async with self._turn:
            at_source = await self.source.describe_topics()
            self.names_at_source = tuple(at_source)
            at_target = await self.target.describe_topics()
            brokers = len((await self.target.describe_cluster()).nodes)
            selected = {name: at_source[name] for name in sorted(at_source) if name in self.names}
            for name in self.copies.leave(selected):
                self.report(Report(name, GONE, is_loss=True))
            for name, source in selected.items():
                known = self.copies.topics.get(name)
                if known is not None and known.retry_at_ms > clock.monotonic_ms():
                    continue
                copy = self.names.copy_of(name)
                async with self.lock:
                    work = self._keep(name, copy, source, at_target.get(copy), brokers)
                    await self._try(name, copy, work)

    async def configure_all(self) -> None:
        """Give the copies the settings of the source's topics, and the ACLs. Raises KafkaError."""
        for topic in self.copies:
            if topic.is_active:
                await self._try(topic.name, topic.copy, self._configure(topic.name, topic.copy))
        if self.settings.acls:
            await self._copy_acls()

    async def _copy_acls(self) -> None:
        copies = {topic.name: topic.copy for topic in self.copies if topic.is_active}
        try:
            acls = await self.source.describe_acls(_TOPIC_ACLS)
            present = await self.target.describe_acls(_TOPIC_ACLS)
            missing = missing_acls(acls, present, copies)
            if missing:
                await self.target.create_acls(missing)
        except KafkaError as error:
            if error.code is not ErrorCode.SECURITY_DISABLED:
                raise
            if not self._lacks_acls:
                self.report(
                    Report("ACLs", f"not copied: a side has no ACLs: {error}", is_loss=True)
                )
            self._lacks_acls = True
        else:
            for name in sorted({one.resource_name for one in missing}):
                count = sum(one.resource_name == name for one in missing)
                self.report(Report("ACLs", f"{name} has {count} more of the source"))

    async def message_bytes(self, copy: str) -> int | None:
        """Return max.message.bytes of a topic at the target; None if it is unknown."""
        found = (await self.target.describe_configs("topic", copy)).get("max.message.bytes")
        text = None if found is None else found.value
        return int(text) if text is not None and text.isdecimal() else None

    async def end_at_source(self, place: TopicPartition) -> int:
        """Return the log end offset of a partition at the source. Raises KafkaError."""
        return (await self.source.list_offsets({place: "latest"}))[place].offset

    async def _try(self, name: str, copy: str, work: Coroutine[Any, Any, str | None]) -> None:
        """Run `work`, which returns why the topic stops; an error that stays stops it, too."""
        try:
            stopped = await work
        except KafkaError as error:
            if error.passing or error.code in _RAISING:
                raise
            stopped = f"{copy} cannot be made like it: {error}"
        if stopped is not None and self.copies.stop(name, copy, stopped):
            self.report(Report(name, f"stopped: {stopped}", is_loss=True))

    async def _keep(
        self,
        name: str,
        copy: str,
        source: TopicDescription,
        target: TopicDescription | None,
        brokers: int,
    ) -> str | None:
        """Make the copy like the topic; return why the topic stops."""
        known = self.copies.topics.get(name)
        plan = plan_topic(
            _facts(source),
            None if target is None else _facts(target),
            known.ids if known is not None and known.is_recorded else None,
            brokers=brokers,
            replication_factor=self.settings.replication_factor,
            follows=self.settings.on_recreated == "follow",
        )
        if plan.stop is not None:
            return plan.stop
        if plan.notice is not None:
            self.report(Report(name, plan.notice, is_loss=True))
        if plan.restart:
            self.copies.restart(name)
        copy_id = await self._create_or_grow(name, copy, plan)
        if copy_id is None and target is not None:
            copy_id = target.topic_id
        ids = TopicIds(source=source.topic_id, target=copy_id or TopicIds().target)
        self.copies.enter(name, copy, ids, len(source.partitions))
        return None

    async def _create_or_grow(self, name: str, copy: str, plan: TopicPlan) -> bytes | None:
        """Return the id of a created topic."""
        if plan.create is not None:
            partitions, replicas = plan.create
            configs = copied_configs(await self.source.describe_configs("topic", name))
            try:
                new = NewTopic(copy, partitions, replicas, configs=configs)
                await self.target.create_topics([new])
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # by another client, just now
                    raise
            self.report(Report(name, f"created {copy} with {partitions} partitions"))
            return await self._id_of(copy)
        if plan.grow_to is not None:
            await self.target.create_partitions({copy: plan.grow_to})
            self.report(Report(name, f"{copy} has {plan.grow_to} partitions now"))
        return None

    async def _id_of(self, copy: str) -> bytes:
        """Return the id of a new topic, which not every broker may have at once."""
        for _ in range(_LOOKS - 1):
            try:
                return (await self.target.describe_topics([copy]))[copy].topic_id
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            await asyncio.sleep(_LOOK_MS / 1000)
        return (await self.target.describe_topics([copy]))[copy].topic_id

    async def _configure(self, name: str, copy: str) -> None:
        wanted = await self.source.describe_configs("topic", name)
        present = await self.target.describe_configs("topic", copy)
        change = plan_configs(wanted, present)
        if change:
            await self.target.alter_configs("topic", copy, change.values, delete=change.delete)
            names = ", ".join([*change.values, *change.delete])
            self.report(Report(name, f"{copy} has the source's settings again: {names}"))


def _facts(topic: TopicDescription) -> TopicFacts:
    replicas = max((len(one.replicas) for one in topic.partitions.values()), default=1)
    return TopicFacts(
        topic_id=topic.topic_id,
        partitions=len(topic.partitions),
        replication_factor=max(replicas, 1),
    )
