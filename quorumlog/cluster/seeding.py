"""Gives a running cluster the contents of a seed: all of it is checked before anything is created.

A second seeding changes nothing. Objects that exist stay as they are, if they have the shape of the
seed, and are refused otherwise. Records are produced to empty topics only, and offsets are
committed only for partitions without a committed offset.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.client import Acl, KafkaError, NewScramCredential, NewTopic, TopicPartition
from quorumlog.client.descriptions import BROKER_DEFAULT, TopicDescription
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.client.sync import SyncAdmin, SyncProducer
from quorumlog.cluster.errors import ClusterError
from quorumlog.cluster.seed_file import Place, SeedAcl, SeedQuota, SeedSource, SeedTopic, SeedUser
from quorumlog.metadata_quorum.controller.configs import kept_value

DELETE_IT: Final = "delete it, or change the seed"


@dataclass(frozen=True, slots=True)
class Seeded:
    """Names of the created objects and of the unchanged objects, such as "topic orders"."""

    created: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield lines for a reader."""
        if self.created:
            yield f"seed: created {', '.join(self.created)}"
        if self.kept:
            yield f"seed: unchanged {', '.join(self.kept)}"


def apply(source: SeedSource, client: Mapping[str, Any]) -> Seeded:
    """Create all that is missing; block until it is there. `client`: arguments of clients.

    Raises ClusterError with the place in the seed, and without a change if an object of another
    shape exists.
    """
    with SyncAdmin(**client) as admin:
        return _Seeding(source, admin, client).run()


class _Seeding:
    """One seeding. `_check_...` finds the missing objects, `_create` makes them."""

    def __init__(self, source: SeedSource, admin: SyncAdmin, client: Mapping[str, Any]) -> None:
        self._source, self._seed, self._admin = source, source.seed, admin
        self._client: Final = client
        self._done: Final = Seeded()

    def run(self) -> Seeded:
        existing = self._existing_topics()
        topics = self._missing_topics(existing)
        to_fill = self._topics_to_fill(existing)
        offsets = self._missing_offsets(existing)
        users, acls, quotas = self._missing_users(), self._missing_acls(), self._missing_quotas()
        self._create_topics(topics)
        self._fill(to_fill)
        for group, committed in offsets.items():
            self._admin.alter_consumer_group_offsets(group, committed)
        if users:
            self._admin.alter_user_scram_credentials(users)
        if acls:
            self._admin.create_acls(acls)
        for quota in quotas:
            self._admin.alter_client_quotas(quota.names, quota.values)
        return self._done

    def _refuse(self, place: Place, problem: str) -> ClusterError:
        return ClusterError(self._source.at(place, problem))

    def _note(self, name: str, *, is_new: bool) -> None:
        (self._done.created if is_new else self._done.kept).append(name)

    # Topics.

    def _existing_topics(self) -> dict[str, TopicDescription]:
        names = {topic.name for topic in self._seed.topics}
        names |= {one.topic for group in self._seed.groups for one in group.offsets}
        found = names.intersection(self._admin.list_topics(include_internal=True))
        return dict(self._admin.describe_topics(sorted(found))) if found else {}

    def _missing_topics(self, existing: dict[str, TopicDescription]) -> list[NewTopic]:
        missing = []
        for index, topic in enumerate(self._seed.topics):
            place = ("topics", index)
            if topic.name in existing:
                self._require_shape(place, topic, existing[topic.name])
                continue
            new = NewTopic(
                topic.name,
                topic.partitions,
                topic.replication or BROKER_DEFAULT,
                configs=topic.configs,
            )
            try:
                self._admin.create_topics([new], validate_only=True)
            except KafkaError as error:
                raise self._refuse(place, str(error)) from error
            missing.append(new)
        return missing

    def _require_shape(self, place: Place, topic: SeedTopic, found: TopicDescription) -> None:
        replicas = len(found.partitions[0].replicas)
        pairs = {"partitions": (topic.partitions, len(found.partitions))}
        if topic.replication is not None:
            pairs["replication"] = (topic.replication, replicas)
        for name, (wanted, has) in pairs.items():
            if wanted != has:
                problem = f"the topic {topic.name} exists, with {has} instead of {wanted}"
                raise self._refuse((*place, name), f"{problem}; {DELETE_IT}")
        if not topic.configs:
            return
        configs = self._admin.describe_configs("topic", topic.name)
        for name, text in topic.configs.items():
            value = kept_value(name, text)
            if configs[name].value != value:
                problem = f"the topic {topic.name} exists, with {configs[name].value} instead of "
                raise self._refuse((*place, "configs", name), f"{problem}{value}; {DELETE_IT}")

    def _topics_to_fill(self, existing: dict[str, TopicDescription]) -> list[SeedTopic]:
        """Return the topics without records. Note all topics."""
        to_fill = []
        for index, topic in enumerate(self._seed.topics):
            is_new, count = topic.name not in existing, len(topic.records)
            written = 0 if is_new else self._records_ever(topic)
            if 0 < written < count:
                problem = f"the topic {topic.name} has {written} records, the seed has {count}"
                raise self._refuse(("topics", index, "records"), f"{problem}; {DELETE_IT}")
            is_to_fill = count > 0 and not written
            if is_to_fill:
                to_fill.append(topic)
            records = f" ({count} records)" if count else ""
            self._note(f"topic {topic.name}{records}", is_new=is_new or is_to_fill)
        return to_fill

    def _records_ever(self, topic: SeedTopic) -> int:
        partitions = [TopicPartition(topic.name, n) for n in range(topic.partitions)]
        ends = self._admin.list_offsets(dict.fromkeys(partitions, "latest"))
        return sum(end.offset for end in ends.values())

    def _create_topics(self, topics: list[NewTopic]) -> None:
        if topics:
            self._admin.create_topics(topics)

    def _fill(self, topics: list[SeedTopic]) -> None:
        if not topics:
            return
        with SyncProducer(**self._client, acks="all") as producer:
            sent = [
                producer.send(
                    topic.name,
                    record.value,
                    record.key,
                    partition=record.partition,
                    headers=tuple(record.headers.items()),
                    timestamp_ms=record.timestamp,
                )
                for topic in topics
                for record in topic.records
            ]
            for delivery in sent:
                delivery.result()

    # Groups.

    def _missing_offsets(
        self, existing: dict[str, TopicDescription]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        seeded = {topic.name: topic.partitions for topic in self._seed.topics}
        missing = {}
        for index, group in enumerate(self._seed.groups):
            committed = self._admin.list_consumer_group_offsets(group.name)
            new = {}
            for number, one in enumerate(group.offsets):
                partition = TopicPartition(one.topic, one.partition)
                count = seeded.get(one.topic)
                if count is None and one.topic in existing:
                    count = len(existing[one.topic].partitions)
                if count is None or one.partition >= count:
                    place = ("groups", index, "offsets", number, "topic")
                    raise self._refuse(place, f"there is no partition {partition}")
                if partition not in committed:
                    new[partition] = OffsetAndMetadata(one.offset, metadata=one.metadata)
            if new:
                missing[group.name] = new
            self._note(f"group {group.name}", is_new=bool(new))
        return missing

    # Users, ACLs and quotas.

    def _missing_users(self) -> list[NewScramCredential]:
        if not self._seed.users:
            return []
        found = self._admin.describe_user_scram_credentials()
        missing = []
        for index, user in enumerate(self._seed.users):
            kept = {one.mechanism: one.iterations for one in found.get(user.name, ())}
            has = kept.get(user.mechanism)
            if has not in {None, user.iterations}:
                problem = f"{user.name} has {has} iterations instead of {user.iterations}"
                raise self._refuse(("users", index, "iterations"), f"{problem}; {DELETE_IT}")
            if has is None:
                missing.append(_credential(user))
            self._note(f"user {user.name}", is_new=has is None)
        return missing

    def _missing_acls(self) -> list[Acl]:
        if not self._seed.acls:
            return []
        found = self._admin.describe_acls()
        wanted = [_acl(one) for one in self._seed.acls]
        for acl in wanted:
            name = f"ACL {acl.operation} of {acl.principal} on {acl.resource_name}"
            self._note(name, is_new=acl not in found)
        return [acl for acl in wanted if acl not in found]

    def _missing_quotas(self) -> list[SeedQuota]:
        missing = []
        for index, quota in enumerate(self._seed.quotas):
            place: Place = ("quotas", index)
            name = ", ".join(f"{kind} {one or '(default)'}" for kind, one in quota.names.items())
            [*found] = self._admin.describe_client_quotas(quota.names, strict=True)
            has = found[0].values if found else {}
            for key, value in quota.values.items():
                if has.get(key, value) != value:
                    problem = f"the quota of {name} is {has[key]:g} instead of {value:g}"
                    raise self._refuse((*place, "values", key), f"{problem}; {DELETE_IT}")
            is_new = not quota.values.keys() <= has.keys()
            if is_new:
                try:
                    self._admin.alter_client_quotas(quota.names, quota.values, validate_only=True)
                except (KafkaError, ValueError) as error:
                    raise self._refuse(place, str(error)) from error
                missing.append(quota)
            self._note(f"quota of {name}", is_new=is_new)
        return missing


def _credential(user: SeedUser) -> NewScramCredential:
    return NewScramCredential(
        user=user.name, password=user.password, mechanism=user.mechanism, iterations=user.iterations
    )


def _acl(one: SeedAcl) -> Acl:
    return Acl(
        resource_type=one.resource_type,
        resource_name=one.resource_name,
        pattern_type=one.pattern_type,
        principal=one.principal,
        host=one.host,
        operation=one.operation,
        permission=one.permission,
    )
