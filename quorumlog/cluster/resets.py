"""Reads the contents of a cluster into a mark, and returns the cluster to a mark.

Clients that stay connected see a deletion, as from an administrator. Transactional ids stay, as
Kafka has no request that deletes them: open transactions are aborted, and their producers fenced.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from quorumlog.client import Admin, KafkaError, Producer, TopicPartition
from quorumlog.client.descriptions import AclFilter, ConfigResource, GroupListing, NewTopic
from quorumlog.client.sync.loop_thread import LoopThread
from quorumlog.cluster import security
from quorumlog.cluster.cluster_waits import caught_up
from quorumlog.cluster.errors import ClusterError
from quorumlog.cluster.marks import (
    NEW_CLUSTER,
    Changes,
    Entity,
    Mark,
    Offsets,
    Resource,
    Settings,
    TopicMark,
    changes_to,
    new_cluster,
)
from quorumlog.wire.codec.error_codes import ErrorCode

if TYPE_CHECKING:
    from quorumlog.cluster.local_cluster import LocalCluster

Result = TypeVar("Result")

_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_OWN: Final = {"topic": 1, "group": 8}  # KIP-226: the source of a setting of this resource
_OF_BROKER, _OF_ALL_BROKERS = 2, 3
_ALL_BROKERS: Final = ConfigResource("broker", "")  # no listing has it
_TIMEOUT_S: Final = 15.0
_MOVES_POLL_S: Final = 0.05


class StillUsed(ClusterError):
    """Groups have members: clients of an earlier test are still open."""

    def __init__(self, group_ids: Sequence[str]) -> None:
        super().__init__(
            f"group {', '.join(group_ids)} has members: a consumer of an earlier test is open;"
            " close each at the end of its test"
        )
        self.group_ids: Final = tuple(group_ids)


def read_mark(cluster: "LocalCluster") -> Mark:
    """Return the contents of a cluster. Raises KafkaError, ClusterError if no node runs."""
    caught_up(cluster, _TIMEOUT_S)
    return _with_admin(cluster, lambda admin: _read(admin, None))


def reset(
    cluster: "LocalCluster", mark: Mark | None = None, *, spares_used_groups: bool = False
) -> None:
    """Return a cluster to a mark; None: to the contents of a new one. See LocalCluster.reset.

    spares_used_groups: StillUsed is raised only when all but the groups with members is reset.
    """
    caught_up(cluster, _TIMEOUT_S)  # any broker may be requested
    changes, used = _with_admin(
        cluster, lambda admin: _reset(admin, cluster, mark, spares_used_groups)
    )
    caught_up(cluster, _TIMEOUT_S)
    if changes.created_topics:
        _with_admin(cluster, lambda admin: admin.create_topics(_anew(changes)))
        caught_up(cluster, _TIMEOUT_S)
    if changes.offsets:
        _with_admin(cluster, lambda admin: _commit(admin, changes))
    if changes.moved:
        _with_admin(cluster, lambda admin: _move_back(admin, changes.moved))
        caught_up(cluster, _TIMEOUT_S)
    if used:
        raise StillUsed(used)


def delete_groups(cluster: "LocalCluster", group_ids: Sequence[str]) -> tuple[str, ...]:
    """Delete groups; return the groups that still have members."""
    if not group_ids:
        return ()
    return _with_admin(cluster, lambda admin: _delete_groups(admin, group_ids))


def _with_admin(cluster: "LocalCluster", work: Callable[[Admin], Awaitable[Result]]) -> Result:
    """Run `work` on the event loop of the blocking clients."""

    async def connected() -> Result:
        async with Admin(
            **cluster.own_client(), default_api_timeout_ms=round(_TIMEOUT_S * 1000)
        ) as admin:
            return await work(admin)

    user = object()
    loop = LoopThread.acquire(user)
    try:
        return loop.run(connected())
    finally:
        loop.release(user)


async def _read(admin: Admin, marked: Mark | None) -> Mark:
    """Return the present contents; the offsets only of topics and groups in `marked`, if given."""
    topics, groups, settings, quotas, users, acls = await asyncio.gather(
        _topics(admin, None if marked is None else marked.topics.keys()),
        _groups(admin, None if marked is None else marked.groups.keys()),
        _settings(admin),
        admin.describe_client_quotas(),
        admin.describe_user_scram_credentials(),
        admin.describe_acls(),
    )
    return Mark(
        topics=topics,
        groups=groups,
        settings=settings,
        quotas={_entity(one.entity.items()): dict(one.values) for one in quotas},
        users=users,
        acls=frozenset(acls),
    )


def _entity(names: Iterable[tuple[str, str | None]]) -> Entity:
    return tuple(sorted(names))


async def _topics(admin: Admin, measured: Collection[str] | None) -> dict[str, TopicMark]:
    found = await admin.describe_topics()
    own = {name: one for name, one in found.items() if not name.startswith("__")}
    partitions = [
        TopicPartition(name, index)
        for name, one in own.items()
        for index in one.partitions
        if measured is None or name in measured
    ]
    starts, ends = (
        ({}, {})
        if not partitions
        else await asyncio.gather(
            admin.list_offsets(dict.fromkeys(partitions, "earliest")),
            admin.list_offsets(dict.fromkeys(partitions, "latest")),
        )
    )
    return {
        name: TopicMark(
            topic_id=one.topic_id,
            replicas={index: view.replicas for index, view in one.partitions.items()},
            records={
                place.partition: (starts[place].offset, ends[place].offset)
                for place in partitions
                if place.topic == name
            },
        )
        for name, one in own.items()
    }


async def _groups(admin: Admin, measured: Collection[str] | None) -> dict[str, Offsets]:
    listed: list[GroupListing] = await admin.list_consumer_groups()
    names = [one.group_id for one in listed]
    wanted = names if measured is None else [name for name in names if name in measured]
    found = await asyncio.gather(*map(admin.list_consumer_group_offsets, wanted))
    offsets = {
        name: {(place.topic, place.partition): one.offset for place, one in of_group.items()}
        for name, of_group in zip(wanted, found, strict=True)
    }
    return {name: offsets.get(name, {}) for name in names}


async def _settings(admin: Admin) -> dict[Resource, Settings]:
    listed = await admin.list_config_resources(["topic", "broker", "group"])
    own = [one for one in listed if not one.name.startswith("__")]
    resources = [_ALL_BROKERS, *(one for one in own if one != _ALL_BROKERS)]
    values = await asyncio.gather(*(_values(admin, one) for one in resources))
    found = zip(resources, values, strict=True)
    return {(one.kind, one.name): own for one, own in found if own}


async def _values(admin: Admin, resource: ConfigResource) -> dict[str, str]:
    kind, name = resource
    source = _OWN.get(kind) or (_OF_BROKER if name else _OF_ALL_BROKERS)
    described = await admin.describe_configs(kind, name)  # type: ignore[arg-type]  # of these kinds
    return {
        setting: one.value
        for setting, one in described.items()
        if one.source == source and one.value is not None
    }


async def _reset(
    admin: Admin, cluster: "LocalCluster", mark: Mark | None, spares_used_groups: bool
) -> tuple[Changes, tuple[str, ...]]:
    """Delete and alter, but create nothing yet; return the groups that have members, too.

    Raises ClusterError before the first change.
    """
    now, open_transactions = await asyncio.gather(
        _read(admin, mark or NEW_CLUSTER), admin.transactions.list(states=_OPEN)
    )
    own_users = security.user_names(cluster.directory, cluster.spec)
    changes = changes_to(mark or new_cluster(now, cluster.spec.config, own_users), now)
    if changes.refusals:
        raise ClusterError(
            f"a reset cannot bring back records or passwords: {'; '.join(changes.refusals)};"
            " snapshot(name) before and restore(name) do"
        )
    names = [one.transactional_id for one in open_transactions]
    await asyncio.gather(*(_abort(cluster.own_client(), name) for name in names))
    used = await _delete_groups(admin, changes.deleted_groups)
    if used and not spares_used_groups:
        raise StillUsed(used)
    await asyncio.gather(*_alterations(admin, changes))
    return changes, used


def _alterations(admin: Admin, changes: Changes) -> list[Awaitable[Any]]:
    done: list[Awaitable[Any]] = []
    if changes.deleted_topics:
        done.append(admin.delete_topics(changes.deleted_topics))
    done += [
        admin.alter_configs(kind, name, values, delete=deleted)  # type: ignore[arg-type]  # as above
        for (kind, name), (values, deleted) in changes.settings.items()
    ]
    done += [
        admin.alter_client_quotas(dict(entity), values, delete=deleted)
        for entity, (values, deleted) in changes.quotas.items()
    ]
    if changes.deleted_users:
        done.append(admin.alter_user_scram_credentials(deletions=changes.deleted_users))
    if changes.deleted_acls:
        done.append(admin.delete_acls([_exactly(one) for one in changes.deleted_acls]))
    if changes.created_acls:
        done.append(admin.create_acls(changes.created_acls))
    done += [
        admin.delete_consumer_group_offsets(group, [TopicPartition(*place) for place in places])
        for group, places in changes.lost_offsets.items()
    ]
    return done


def _exactly(acl: Any) -> AclFilter:
    """Return the filter of this ACL alone."""
    return AclFilter(**{name: getattr(acl, name) for name in AclFilter.__dataclass_fields__})


async def _abort(client: Mapping[str, Any], transactional_id: str) -> None:
    """Abort an open transaction: a new producer of its id fences the old one."""
    async with Producer(**client, transactional_id=transactional_id) as producer:
        await producer.init_transactions()


async def _delete_groups(admin: Admin, group_ids: Sequence[str]) -> tuple[str, ...]:
    """Delete groups; return the groups that have members."""
    deleted = await asyncio.gather(*(_is_deleted(admin, name) for name in group_ids))
    return tuple(name for name, is_gone in zip(group_ids, deleted, strict=True) if not is_gone)


async def _is_deleted(admin: Admin, group_id: str) -> bool:
    """Delete a group; return False if it has members."""
    try:
        await admin.delete_consumer_groups([group_id])
    except KafkaError as error:
        if error.code is ErrorCode.NON_EMPTY_GROUP:
            return False
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:  # it was deleted meanwhile
            raise
    return True


def _anew(changes: Changes) -> list[NewTopic]:
    """Return the topics of the mark that were deleted, with their replicas and settings."""
    return [
        NewTopic(name, assignments=topic.replicas, configs=changes.created_settings.get(name, {}))
        for name, topic in changes.created_topics.items()
    ]


async def _commit(admin: Admin, changes: Changes) -> None:
    for group, offsets in changes.offsets.items():
        places = {TopicPartition(*place): offset for place, offset in offsets.items()}
        await admin.alter_consumer_group_offsets(group, places)


async def _move_back(admin: Admin, moved: Mapping[tuple[str, int], tuple[int, ...]]) -> None:
    """Reassign partitions to their former replicas, and wait for that. Raises ClusterError."""
    wanted = {TopicPartition(*place): replicas for place, replicas in moved.items()}
    await admin.alter_partition_reassignments(wanted)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while moving := wanted.keys() & (await admin.list_partition_reassignments()).keys():
        if time.monotonic() > deadline_s:
            names = ", ".join(sorted(map(str, moving)))
            raise ClusterError(f"a reset moves replicas back, which takes too long: {names}")
        await asyncio.sleep(_MOVES_POLL_S)
