"""The target assignment of a group: computed in the step if small, else by the driver.

A target of thousands of partitions takes tens of ms. A `TargetJob` contains all its input, so a
thread can run it while the coordinator handles other events (`awaited_targets.py`).
docs/decisions/0032-group-threads.md
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.groups.core.consumer.assignors import (
    Assign,
    Assignment,
    Counts,
    Members,
    MemberSubscription,
    assignors,
)
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.records import (
    RecordKind,
    TargetMemberValue,
    TargetValue,
    to_stored,
)
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.identifiers import TopicId

AT_ONCE_MAX: Final = 1000  # members and partitions of a target computed within the step: 3 ms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetJob:
    """The input to compute the target of one group epoch. Immutable."""

    group_id: str
    epoch: int
    assign: Assign
    members: Members
    counts: Counts

    @property
    def size(self) -> int:
        """An estimate of the work: the number of members and partitions."""
        return len(self.members) + sum(self.counts.values())

    def run(self) -> Assignment:
        """Return the target. Any thread may call this method."""
        return self.assign(self.members, self.counts)


class Targets:
    """Prepares and writes targets. Its only state is the topics; each method gets the group."""

    def __init__(self, settings: BrokerSettings, topics: Topics) -> None:
        self._topics: Final = topics
        self._assignors: Final = assignors(settings.group_consumer_assignors.split(","))

    def job(self, group: ConsumerGroup) -> TargetJob:
        """Return the job for the group's present epoch."""
        members = {
            member_id: MemberSubscription(
                topic_ids=topic_ids,
                instance_id=group.members[member_id].metadata.instance_id,
                target=group.target_of(member_id),
            )
            for member_id, topic_ids in self._subscribed_ids(group)
        }
        counts = {
            found.topic_id: found.partitions
            for name in group.all_names()
            if (found := self._topics.by_name.get(name)) is not None
        }
        return TargetJob(
            group_id=group.group_id,
            epoch=group.group_epoch,
            assign=self._assignors[self.assignor_name(group)],
            members=members,
            counts=counts,
        )

    def write(self, changes: Changes, job: TargetJob, target: Assignment) -> None:
        """Write the target of the job's epoch: the parts that differ, then the epoch."""
        for member_id, partitions in target.items():
            self.write_part(changes, member_id, partitions)
        self.write_epoch(changes, job)

    def write_part(self, changes: Changes, member_id: str, partitions: Partitions) -> None:
        """Write one member's part of a target, if it differs and the member is still there."""
        group = changes.group
        if member_id in group.members and group.targets.get(member_id) != partitions:
            value = TargetMemberValue(topic_partitions=to_stored(partitions))
            changes.write(RecordKind.TARGET_MEMBER, value, member_id)

    def write_epoch(self, changes: Changes, job: TargetJob) -> None:
        """Write the target's epoch: from now on, members are assigned their parts."""
        changes.write(RecordKind.TARGET, TargetValue(assignment_epoch=job.epoch))

    def _subscribed_ids(self, group: ConsumerGroup) -> Iterator[tuple[str, frozenset[TopicId]]]:
        """Yield each member and its topic ids; equal subscriptions are looked up once."""
        known: dict[tuple[str, ...], frozenset[TopicId]] = {}
        for member_id, member in group.members.items():
            metadata = member.metadata
            key = (metadata.subscribed_topic_regex or "", *metadata.subscribed_topic_names)
            if key not in known:
                known[key] = self._topics.ids(group.names_of(member))
            yield member_id, known[key]

    def assignor_name(self, group: ConsumerGroup) -> str:
        """Return the assignor that most members name; of equals, the first in the settings."""
        votes = Counter(member.metadata.server_assignor for member in group.members.values())
        return max(self._assignors, key=lambda name: votes[name])
