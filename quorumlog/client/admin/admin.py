"""The administrator: all of its methods; one module per subject implements them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Unpack

from quorumlog.client import admin as subjects
from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker
from quorumlog.client.admin.choices import (
    ConfigText,
    Election,
    OffsetSpec,
    ResourceKind,
    UpgradeKind,
)
from quorumlog.client.async_client import AsyncClient
from quorumlog.client.checks import checked_names
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.closing import Close
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.records import OffsetAndMetadata, OffsetAndTimestamp
from quorumlog.client.settings import (
    AdminOptions,
    AdminSettings,
    BootstrapServers,
    IsolationLevel,
    build,
    with_servers,
)
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Request, ResponseT

_NOTHING: Final[Mapping[str, ConfigText]] = {}
_ALL_ACLS: Final = about.AclFilter()
_ANY_ENTITY: Final[Mapping[str, str | None]] = {}
_NO_QUOTAS: Final[Mapping[str, float]] = {}


class Admin(AsyncClient[Asker]):
    """Administers a cluster: `async with Admin("host:port") as admin: ...`.

    The keyword arguments are those of AdminSettings. Every method raises KafkaError, with
    UNSUPPORTED_VERSION (definite) if the cluster has no such request, and TypeError or ValueError
    for invalid arguments. The client repeats a request that fails until `default_api_timeout_ms`
    has passed; it repeats a change only while it is certain that nothing was changed.
    """

    @with_servers
    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[AdminOptions]
    ) -> None:
        self.settings: Final = build(AdminSettings, bootstrap_servers, options)

    async def _open(self) -> Asker:
        cluster = Cluster(self.settings)
        await cluster.start()
        return Asker(cluster, self.settings)

    async def stop(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._close(self._running())

    def _closings(self, opened: Asker) -> list[Close]:
        return [opened.cluster.close]

    async def request(
        self,
        request: Request[ResponseT],
        *,
        broker_id: int | None = None,
        timeout_ms: float | None = None,
    ) -> ResponseT:
        """Send any request, once, to one broker (None: any), and return its answer unchecked."""
        return await self._running().request(request, broker_id=broker_id, timeout_ms=timeout_ms)

    # --- topics ---

    async def create_topics(
        self, topics: Iterable[about.NewTopic], *, validate_only: bool = False
    ) -> None:
        """Create topics. Raises the first topic's error, definite if none was created.

        The broker that was asked knows them then. Another broker hears of them a moment later, as
        in Kafka: until then `describe_topics` may raise UNKNOWN_TOPIC_OR_PARTITION.
        """
        await subjects.topics.create(self._running(), topics, validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics. Raises the first topic's error, definite if none was deleted."""
        await subjects.topics.delete(self._running(), names)

    async def create_partitions(
        self, counts: Mapping[str, int | about.NewPartitions], *, validate_only: bool = False
    ) -> None:
        """Grow topics to that many partitions in total. Keys may then map to other partitions.

        Raises the first topic's error (INVALID_PARTITIONS, ...), definite if none has grown.
        """
        await subjects.topics.grow(self._running(), counts, validate_only=validate_only)

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        found = (await subjects.topics.metadata(self._running(), None)).topics
        names = (one.name for one in found if include_internal or not one.is_internal)
        return sorted(name for name in names if name)

    async def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> dict[str, about.TopicDescription]:
        """Describe these topics; None: all of them.

        The descriptions of named topics have the ELR, if the cluster offers it (KIP-966). Raises
        UNKNOWN_TOPIC_OR_PARTITION if a named topic does not exist.
        """
        return await subjects.topics.describe(self._running(), names)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, election: Election = "preferred"
    ) -> dict[TopicPartition, KafkaError | None]:
        """Let the preferred replica of each partition lead again, or any replica that lives.

        `partitions` None: all of them. Returns None for each partition that has a new leader, and
        the error of each other one: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        UNKNOWN_TOPIC_OR_PARTITION. Source: KIP-460.
        """
        return await subjects.topics.elect(self._running(), partitions, election)

    # --- replicas ---

    async def alter_partition_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Let each partition move to these replicas, the preferred leader first; None: cancel.

        It goes on when this returns: see `list_partition_reassignments`. Raises the first
        partition's error (INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, ...), definite
        if none was changed. Source: KIP-455.
        """
        await subjects.reassignments.alter(self._running(), replicas)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, about.PartitionReassignment]:
        """Return those of the partitions (None: of all) that are moving, as one broker sees it."""
        return await subjects.reassignments.ongoing(self._running(), partitions)

    # --- records ---

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec | int],
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the offset at the start, the end or a time (ms) of each partition.

        The offset is -1 if every record is older.
        """
        return await subjects.records.offsets(self._running(), specs, isolation_level)

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete the records below these offsets (-1: below the high watermark).

        Returns the first offset that each partition then has. Raises OFFSET_OUT_OF_RANGE and
        others; definite if nothing was deleted. Source: KIP-107.
        """
        return await subjects.records.delete(self._running(), before)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[about.ProducerStateDescription, ...]]:
        """Return which idempotent producers each partition's leader remembers (KIP-664)."""
        return await subjects.records.producers(self._running(), partitions)

    @property
    def transactions(self) -> "subjects.transactions.TransactionAdmin":
        """Lists, describes and aborts transactions: `await admin.transactions.list()`."""
        return subjects.transactions.TransactionAdmin(self._running())

    # --- configuration ---

    async def describe_configs(self, kind: ResourceKind, name: str) -> dict[str, about.ConfigValue]:
        """Return the settings of a topic or group (by name) or broker (by id, as text)."""
        return await subjects.configs.describe(self._running(), kind, name)

    async def alter_configs(
        self,
        kind: ResourceKind,
        name: str,
        values: Mapping[str, ConfigText] = _NOTHING,
        *,
        delete: Iterable[str] = (),
        append: Mapping[str, ConfigText] = _NOTHING,
        subtract: Mapping[str, ConfigText] = _NOTHING,
        validate_only: bool = False,
    ) -> None:
        """Make all of these changes to settings, or none; the other settings stay (KIP-339).

        `values` sets settings, `delete` gives them their defaults again. `append` adds items to
        settings that are lists, `subtract` removes items. Raises INVALID_CONFIG and others.
        """
        await subjects.configs.alter(
            self._running(),
            kind,
            name,
            values=values,
            delete=delete,
            append=append,
            subtract=subtract,
            validate_only=validate_only,
        )

    async def list_config_resources(
        self, kinds: Iterable[str] | None = None
    ) -> list[about.ConfigResource]:
        """Return the resources of these kinds that have settings; None: of all kinds (KIP-1142).

        The list is sorted.
        """
        return await subjects.configs.list_resources(self._running(), kinds)

    # --- the cluster ---

    async def describe_cluster(self) -> about.ClusterDescription:
        """Describe the cluster as one broker sees it now."""
        return await subjects.cluster.describe(self._running())

    async def describe_quorum(self) -> about.QuorumDescription:
        """Describe the metadata quorum as its leader sees it (KIP-595)."""
        return await subjects.cluster.quorum(self._running())

    describe_metadata_quorum = describe_quorum  # Kafka's name

    async def add_raft_voter(self, voter_id: int, directory_id: bytes, address: str) -> None:
        """Make a controller that follows the quorum a voter; it is committed on return (KIP-853).

        `directory_id`: 16 bytes, those of its metadata directory; `address`: `host:port` of its
        control listener; both as `describe_quorum` tells them. Raises DUPLICATE_VOTER;
        UNSUPPORTED_VERSION at kraft.version 0; INVALID_REQUEST; REQUEST_TIMED_OUT if the node has
        not caught up, another change goes on, or no commit was seen: then it may still be made.
        """
        await subjects.voters.add(self._running(), voter_id, directory_id, address)

    async def remove_raft_voter(self, voter_id: int, directory_id: bytes) -> None:
        """Make a voter an observer; it is committed on return (KIP-853).

        Raises VOTER_NOT_FOUND for another id or directory, INVALID_REQUEST for the only voter, and
        as `add_raft_voter` does.
        """
        await subjects.voters.remove(self._running(), voter_id, directory_id)

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, dict[str, about.LogDirDescription]]:
        """Return the log directories of brokers (None: of all), by path, with every log's size."""
        return await subjects.cluster.log_dirs(self._running(), brokers)

    async def alter_replica_log_dirs(
        self, broker_id: int, directories: Mapping[TopicPartition, str]
    ) -> None:
        """Let replicas of a broker move to other log directories there, by their paths (KIP-113).

        `describe_log_dirs` shows how far they are. The path where a replica is cancels its move.
        Raises LOG_DIR_NOT_FOUND; KAFKA_STORAGE_ERROR; REPLICA_NOT_AVAILABLE for a replica that the
        broker does not have yet: it will be made there.
        """
        await subjects.cluster.alter_log_dirs(self._running(), broker_id, directories)

    async def unregister_broker(self, broker_id: int) -> None:
        """Let the cluster forget a broker that will not come back.

        Raises BROKER_ID_NOT_REGISTERED; INVALID_REQUEST if the broker is in service, or alone is
        known to hold all records of a partition.
        """
        await subjects.cluster.unregister(self._running(), broker_id)

    async def describe_features(self) -> dict[str, about.FeatureDescription]:
        """Return the levels that are in force, and those that one broker works with (KIP-584)."""
        return await subjects.features.describe(self._running())

    async def update_features(
        self,
        levels: Mapping[str, int],
        kind: UpgradeKind = "upgrade",
        *,
        validate_only: bool = False,
    ) -> None:
        """Let all of these levels be in force, or none of them is changed.

        Raises INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED.
        """
        await subjects.features.update(self._running(), levels, kind, validate_only=validate_only)

    # --- access: a quorumlog cluster stores it and does not enforce it ---

    async def describe_acls(self, wanted: about.AclFilter = _ALL_ACLS) -> list[about.Acl]:
        """Return the ACLs that a filter means, sorted."""
        return await subjects.acls.describe(self._running(), wanted)

    async def create_acls(self, acls: Iterable[about.Acl]) -> None:
        """Create ACLs; one that exists stays. Raises the first error, definite if none is new."""
        await subjects.acls.create(self._running(), acls)

    async def delete_acls(self, filters: Iterable[about.AclFilter]) -> list[about.Acl]:
        """Delete all ACLs that one of the filters means; return them, sorted.

        Raises the first filter's error, definite if nothing was deleted.
        """
        return await subjects.acls.delete(self._running(), filters)

    async def describe_client_quotas(
        self,
        entity: Mapping[str, str | None] = _ANY_ENTITY,
        *,
        any_of: Iterable[str] = (),
        strict: bool = False,
    ) -> list[about.ClientQuota]:
        """Return the quotas of the entities that a filter means (KIP-546).

        They have the names of `entity` by type (None: the default), and some name of each type in
        `any_of`; with `strict`, they have no other types.
        """
        return await subjects.quotas.describe(self._running(), entity, any_of, strict=strict)

    async def alter_client_quotas(
        self,
        entity: Mapping[str, str | None],
        values: Mapping[str, float] = _NO_QUOTAS,
        *,
        delete: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set and delete quotas of one entity, all of them or none; the others stay (KIP-546)."""
        await subjects.quotas.alter(
            self._running(), entity, values, delete, validate_only=validate_only
        )

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, tuple[about.ScramCredential, ...]]:
        """Return which credentials users (None: all that have some) have; () for none."""
        return await subjects.users.describe(self._running(), users)

    async def alter_user_scram_credentials(
        self,
        upsertions: Iterable[about.NewScramCredential] = (),
        deletions: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Set credentials, and delete those of (user, mechanism) pairs (KIP-554).

        Raises the first user's error (RESOURCE_NOT_FOUND, UNACCEPTABLE_CREDENTIAL, ...), definite
        if nothing was changed.
        """
        await subjects.users.alter(self._running(), upsertions, deletions)

    # --- groups ---

    async def list_consumer_groups(self) -> list[about.GroupListing]:
        """Ask every broker for the groups that it coordinates; sorted by name."""
        return await subjects.groups.list_all(self._running())

    async def describe_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, about.GroupDescription]:
        """Describe classic groups; one that does not exist is described as "Dead"."""
        asker = self._running()
        names = checked_names(group_ids)
        return {group_id: await subjects.groups.describe(asker, group_id) for group_id in names}

    async def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a group has committed for these partitions; None: for all."""
        return await subjects.groups.offsets(self._running(), group_id, partitions)

    async def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> None:
        """Commit offsets in the name of a group without members, also of one that is new.

        Raises UNKNOWN_MEMBER_ID if the group has members.
        """
        await subjects.groups.alter_offsets(self._running(), group_id, offsets)

    async def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Forget what a group has committed for these partitions (KIP-496).

        Raises GROUP_SUBSCRIBED_TO_TOPIC if a member reads the topic, GROUP_ID_NOT_FOUND.
        """
        await subjects.groups.delete_offsets(self._running(), group_id, partitions)

    async def delete_consumer_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, with their offsets. Raises NON_EMPTY_GROUP and others.

        It deletes one after the other. An error is definite if no group was deleted.
        """
        await subjects.groups.delete(self._running(), group_ids)
