"""A mark: the contents of a cluster that `LocalCluster.reset` returns to. Decisions only.

A mark has no records. A topic that was empty at the mark and has grown is deleted and created anew;
one that had records and has changed cannot be restored from a mark, and the reset refuses before
its first change. `LocalCluster.restore` brings back records.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quorumlog.client.descriptions import Acl, ScramCredential

Settings = Mapping[str, str]
Resource = tuple[str, str]
"""(kind, name): ("topic", "orders"), ("broker", "") for the defaults of all brokers, ..."""
Entity = tuple[tuple[str, str | None], ...]
Offsets = Mapping[tuple[str, int], int]
"""Offsets by (topic, partition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMark:
    """A topic: its id, its replicas by partition, and its records [start, end) by partition."""

    topic_id: bytes
    replicas: Mapping[int, tuple[int, ...]]
    records: Mapping[int, tuple[int, int]]

    @property
    def is_empty(self) -> bool:
        """Whether no partition has a record."""
        return all(start == end for start, end in self.records.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The contents of a cluster; without arguments, those of a new cluster."""

    topics: Mapping[str, TopicMark] = field(default_factory=dict)
    groups: Mapping[str, Offsets] = field(default_factory=dict)
    settings: Mapping[Resource, Settings] = field(default_factory=dict)
    quotas: Mapping[Entity, Mapping[str, float]] = field(default_factory=dict)
    users: Mapping[str, "tuple[ScramCredential, ...]"] = field(default_factory=dict)
    acls: "frozenset[Acl]" = frozenset()


NEW_CLUSTER: Final = Mark()


_ALL_BROKERS: Final[Resource] = ("broker", "")
_MIN_ISR: Final = "min.insync.replicas"


def new_cluster(now: Mark, config: Mapping[str, str], users: Collection[str] = ()) -> Mark:
    """Return the contents of a new cluster with this configuration of its nodes.

    `users`: the users of a new cluster; they keep their present passwords. With eligible leader
    replicas (KIP-966) its metadata has min.insync.replicas, which cannot be removed.
    """
    kept = {user: has for user, has in now.users.items() if user in users}
    if _MIN_ISR not in now.settings.get(_ALL_BROKERS, {}):
        return replace(NEW_CLUSTER, users=kept)
    return Mark(settings={_ALL_BROKERS: {_MIN_ISR: config.get(_MIN_ISR, "1")}}, users=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes that return a cluster to a mark.

    `refusals`: reasons why it is impossible. `created_settings`: of the created topics, by name.
    `moved`: the former replicas, by topic and partition, of topics that keep their records.
    `settings`: the new values of a resource, and the names to delete. `offsets`: to commit, by
    group; `lost_offsets`: to delete.
    """

    refusals: tuple[str, ...]
    deleted_topics: tuple[str, ...]
    created_topics: Mapping[str, TopicMark]
    created_settings: Mapping[str, Settings]
    moved: Mapping[tuple[str, int], tuple[int, ...]]
    deleted_groups: tuple[str, ...]
    offsets: Mapping[str, Offsets]
    lost_offsets: Mapping[str, tuple[tuple[str, int], ...]]
    settings: Mapping[Resource, tuple[Settings, tuple[str, ...]]]
    quotas: Mapping[Entity, tuple[Mapping[str, float], tuple[str, ...]]]
    deleted_users: tuple[tuple[str, str], ...]
    deleted_acls: "tuple[Acl, ...]"
    created_acls: "tuple[Acl, ...]"


def changes_to(mark: Mark, now: Mark) -> Changes:
    """Decide the changes from the present contents to a mark."""
    altered = {name: topic for name, topic in mark.topics.items() if now.topics.get(name) != topic}
    anew = {name: topic for name, topic in altered.items() if topic.is_empty}
    extra = now.topics.keys() - (mark.topics.keys() - anew.keys())
    offsets, lost = _offset_changes(mark, now, anew)
    credentials = {(user, one.mechanism) for user, has in now.users.items() for one in has}
    kept = {(user, one.mechanism) for user, has in mark.users.items() for one in has}
    return Changes(
        refusals=(*_refusals(now, altered), *_lost_users(kept - credentials)),
        deleted_topics=tuple(sorted(extra)),
        created_topics=anew,
        created_settings={
            name: mark.settings[resource]
            for name in anew
            if (resource := ("topic", name)) in mark.settings
        },
        moved={
            (name, index): replicas
            for name in altered.keys() - anew.keys()
            for index, replicas in mark.topics[name].replicas.items()
            if name in now.topics and now.topics[name].replicas.get(index) != replicas
        },
        deleted_groups=tuple(sorted(now.groups.keys() - mark.groups.keys())),
        offsets=offsets,
        lost_offsets=lost,
        settings=dict(_setting_changes(mark, now, extra | anew.keys())),
        quotas={
            entity: (
                mark.quotas.get(entity, {}),
                tuple(sorted(now.quotas.get(entity, {}).keys() - mark.quotas.get(entity, {}))),
            )
            for entity in {**mark.quotas, **now.quotas}
            if mark.quotas.get(entity) != now.quotas.get(entity)
        },
        deleted_users=tuple(sorted(credentials - kept)),
        deleted_acls=tuple(sorted(now.acls - mark.acls)),
        created_acls=tuple(sorted(mark.acls - now.acls)),
    )


def _refusals(now: Mark, altered: Mapping[str, TopicMark]) -> Iterator[str]:
    for name, topic in sorted(altered.items()):
        if topic.is_empty:
            continue
        present = now.topics.get(name)
        if present is None or present.topic_id != topic.topic_id:
            yield f"topic {name}, which had records at the mark, was deleted"
        elif present.records != topic.records:
            yield f"topic {name} had the records {_ranges(topic)} and has {_ranges(present)}"


def _ranges(topic: TopicMark) -> str:
    ranges = [f"{index}: [{start}, {end})" for index, (start, end) in topic.records.items()]
    return ", ".join(ranges)


def _lost_users(lost: set[tuple[str, str]]) -> Iterator[str]:
    for user, mechanism in sorted(lost):
        yield f"the {mechanism} password of user {user} was deleted"


def _offset_changes(
    mark: Mark, now: Mark, anew: Mapping[str, TopicMark]
) -> tuple[dict[str, Offsets], dict[str, tuple[tuple[str, int], ...]]]:
    """Return the offsets to commit and to delete. A topic created anew has lost its offsets."""
    offsets = dict[str, Offsets]()
    lost = dict[str, tuple[tuple[str, int], ...]]()
    for group, marked in mark.groups.items():
        present = {
            place: offset
            for place, offset in now.groups.get(group, {}).items()
            if place[0] not in anew
        }
        if differing := {
            place: offset for place, offset in marked.items() if present.get(place) != offset
        }:
            offsets[group] = differing
        kept_topics = mark.topics.keys() & now.topics.keys()
        if gone := [place for place in present.keys() - marked if place[0] in kept_topics]:
            lost[group] = tuple(sorted(gone))
    return offsets, lost


def _setting_changes(
    mark: Mark, now: Mark, passing_topics: set[str]
) -> Iterator[tuple[Resource, tuple[Settings, tuple[str, ...]]]]:
    for resource in sorted({**mark.settings, **now.settings}):
        kind, name = resource
        if kind == "topic" and name in passing_topics:  # created with its settings, if at all
            continue
        wanted, present = mark.settings.get(resource, {}), now.settings.get(resource, {})
        if wanted != present:
            yield resource, (wanted, tuple(sorted(present.keys() - wanted)))
