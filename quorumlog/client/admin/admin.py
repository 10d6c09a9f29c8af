"""The administrator's methods; one module per subject implements them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Unpack

from quorumlog.client import admin as subjects
from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker
from quorumlog.client.async_client import AsyncClient
from quorumlog.client.checks import checked_names
from quorumlog.client.descriptions import (
    ConfigText,
    Election,
    OffsetSpec,
    ResourceKind,
    UpgradeKind,
)
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

    The keyword arguments are the fields of AdminSettings. Every method raises KafkaError, with
    UNSUPPORTED_VERSION (definite) if the cluster does not support the request, and TypeError or
    ValueError for invalid arguments. The client retries a failed request for
    `default_api_timeout_ms`; a change only while it is certain that it had no effect.
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
        """Send any request, once, to one broker (None: any), and return the unchecked response."""
        return await self._running().request(request, broker_id=broker_id, timeout_ms=timeout_ms)

    # --- topics ---

    async def create_topics(
        self, topics: Iterable[about.NewTopic], *, validate_only: bool = False
    ) -> None:
        """Create topics. Raises the first topic's error, definite if none was created.

        On return the broker of the request has the topics in its metadata. Other brokers get them a
        moment later, as in Kafka: until then `describe_topics` may raise
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        await subjects.topics.create(self._running(), topics, validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics. Raises the first topic's error, definite if none was deleted."""
        await subjects.topics.delete(self._running(), names)

    async def create_partitions(
        self, counts: Mapping[str, int | about.NewPartitions], *, validate_only: bool = False
    ) -> None:
        """Grow topics to these total partition counts. Keys may then map to other partitions.

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
        """Describe these topics; None: all topics.

        The descriptions of named topics have the ELR, if the cluster supports it (KIP-966). Raises
        UNKNOWN_TOPIC_OR_PARTITION if a named topic does not exist.
        """
        return await subjects.topics.describe(self._running(), names)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, election: Election = "preferred"
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect each partition's preferred replica as leader, or by "unclean" any live replica.

        `partitions` None: all partitions. Returns for each partition None if it has a new leader,
        or its error: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        UNKNOWN_TOPIC_OR_PARTITION. Source: KIP-460.
        """
        return await subjects.topics.elect(self._running(), partitions, election)

    # --- replicas ---

    async def alter_partition_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Begin to move each partition to these replicas, the preferred leader first; None: cancel.

        The reassignment continues after the return: see `list_partition_reassignments`. Raises the
        first partition's error (INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, ...),
        definite if no partition was changed. Source: KIP-455.
        """
        await subjects.reassignments.alter(self._running(), replicas)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, about.PartitionReassignment]:
        """Return the reassignments in progress of these partitions; None: of all partitions."""
        return await subjects.reassignments.ongoing(self._running(), partitions)

    # --- records ---

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec | int],
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return each partition's earliest or latest offset, or its first offset at a time (ms).

        The offset is -1 if every record is older.
        """
        return await subjects.records.offsets(self._running(), specs, isolation_level)

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete the records below these offsets (-1: below the high watermark).

        Returns each partition's new log start offset. Raises OFFSET_OUT_OF_RANGE and others;
        definite if no record was deleted. Source: KIP-107.
        """
        return await subjects.records.delete(self._running(), before)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[about.ProducerStateDescription, ...]]:
        """Return the idempotent producers' states at each partition's leader (KIP-664)."""
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
        """Change settings, all or none; the other settings stay (KIP-339).

        `values` sets settings, `delete` restores their defaults. `append` adds items to list
        settings, `subtract` removes items. Raises INVALID_CONFIG and others.
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
        """Return the resources of these kinds (None: all) that have settings (KIP-1142), sorted."""
        return await subjects.configs.list_resources(self._running(), kinds)

    # --- the cluster ---

    async def describe_cluster(self) -> about.ClusterDescription:
        """Describe the cluster by one broker's metadata."""
        return await subjects.cluster.describe(self._running())

    async def describe_quorum(self) -> about.QuorumDescription:
        """Describe the metadata quorum by its leader's state (KIP-595)."""
        return await subjects.cluster.quorum(self._running())

    describe_metadata_quorum = describe_quorum  # Kafka's name

    async def add_raft_voter(self, voter_id: int, directory_id: bytes, address: str) -> None:
        """Make a controller that observes the quorum a voter; committed on return (KIP-853).

        `directory_id`: the 16 bytes of its metadata directory's id; `address`: `host:port` of its
        controller listener; `describe_quorum` returns both. Raises DUPLICATE_VOTER;
        UNSUPPORTED_VERSION at kraft.version 0; INVALID_REQUEST; REQUEST_TIMED_OUT if the node has
        not caught up, another change is in progress, or the commit was not seen: then the change
        may still be made.
        """
        await subjects.cluster.add_voter(self._running(), voter_id, directory_id, address)

    async def remove_raft_voter(self, voter_id: int, directory_id: bytes) -> None:
        """Make a voter an observer; committed on return (KIP-853).

        Raises VOTER_NOT_FOUND for another id or directory, INVALID_REQUEST for the only voter, and
        the other errors of `add_raft_voter`.
        """
        await subjects.cluster.remove_voter(self._running(), voter_id, directory_id)

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, dict[str, about.LogDirDescription]]:
        """Return the log directories of brokers (None: all) by path, with the size of every log."""
        return await subjects.cluster.log_dirs(self._running(), brokers)

    async def alter_replica_log_dirs(
        self, broker_id: int, directories: Mapping[TopicPartition, str]
    ) -> None:
        """Begin to move replicas of a broker to other log directories, by their paths (KIP-113).

        `describe_log_dirs` shows the progress. A replica's present path cancels its move.
        Raises LOG_DIR_NOT_FOUND; KAFKA_STORAGE_ERROR; REPLICA_NOT_AVAILABLE for a replica that the
        broker does not have yet: it will be created there.
        """
        await subjects.cluster.alter_log_dirs(self._running(), broker_id, directories)

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker that will not come back.

        Raises BROKER_ID_NOT_REGISTERED; INVALID_REQUEST if the broker is in service, or is the only
        replica that is known to have all records of a partition.
        """
        await subjects.cluster.unregister(self._running(), broker_id)

    async def describe_features(self) -> dict[str, about.FeatureDescription]:
        """Return the finalized feature levels, and those that one broker supports (KIP-584)."""
        return await subjects.features.describe(self._running())

    async def update_features(
        self,
        levels: Mapping[str, int],
        kind: UpgradeKind = "upgrade",
        *,
        validate_only: bool = False,
    ) -> None:
        """Set feature levels, all or none (KIP-584).

        Raises INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED.
        """
        await subjects.features.update(self._running(), levels, kind, validate_only=validate_only)

    # --- access ---

    async def describe_acls(self, wanted: about.AclFilter = _ALL_ACLS) -> list[about.Acl]:
        """Return the ACLs that match a filter, sorted."""
        return await subjects.acls.describe(self._running(), wanted)

    async def create_acls(self, acls: Iterable[about.Acl]) -> None:
        """Create ACLs that do not exist. Raises the first error, definite if none was created."""
        await subjects.acls.create(self._running(), acls)

    async def delete_acls(self, filters: Iterable[about.AclFilter]) -> list[about.Acl]:
        """Delete all ACLs that match one of the filters; return them, sorted.

        Raises the first filter's error, definite if no ACL was deleted.
        """
        return await subjects.acls.delete(self._running(), filters)

    async def describe_client_quotas(
        self,
        entity: Mapping[str, str | None] = _ANY_ENTITY,
        *,
        any_of: Iterable[str] = (),
        strict: bool = False,
    ) -> list[about.ClientQuota]:
        """Return the quotas of the entities that match a filter (KIP-546).

        An entity matches if it has the names in `entity`, by type (None: the default), and a name
        of each type in `any_of`; with `strict`, it must have no other types.
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
        """Set and delete quotas of one entity, all or none; the other quotas stay (KIP-546)."""
        await subjects.quotas.alter(
            self._running(), entity, values, delete, validate_only=validate_only
        )

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, tuple[about.ScramCredential, ...]]:
        """Return each user's credentials, () for none; `users` None: all users with credentials."""
        return await subjects.users.describe(self._running(), users)

    async def alter_user_scram_credentials(
        self,
        upsertions: Iterable[about.NewScramCredential] = (),
        deletions: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Set credentials, and delete the credentials of (user, mechanism) pairs (KIP-554).

        Raises the first user's error (RESOURCE_NOT_FOUND, UNACCEPTABLE_CREDENTIAL, ...), definite
        if no credential was changed.
        """
        await subjects.users.alter(self._running(), upsertions, deletions)

    # --- groups ---

    async def list_consumer_groups(self) -> list[about.GroupListing]:
        """Return the groups that all brokers coordinate, sorted by name."""
        return await subjects.groups.list_all(self._running())

    async def describe_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, about.GroupDescription]:
        """Describe classic and consumer groups; a missing group has the state "Dead"."""
        asker = self._running()
        names = checked_names(group_ids)
        return {group_id: await subjects.groups.describe(asker, group_id) for group_id in names}

    async def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets of these partitions; None: of all partitions."""
        return await subjects.groups.offsets(self._running(), group_id, partitions)

    async def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> None:
        """Commit offsets of a group without members, or of a new group.

        Raises UNKNOWN_MEMBER_ID if the group has members.
        """
        await subjects.groups.alter_offsets(self._running(), group_id, offsets)

    async def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Delete a group's committed offsets of these partitions (KIP-496).

        Raises GROUP_SUBSCRIBED_TO_TOPIC if a member subscribes to the topic, GROUP_ID_NOT_FOUND.
        """
        await subjects.groups.delete_offsets(self._running(), group_id, partitions)

    async def delete_consumer_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, with their offsets. Raises NON_EMPTY_GROUP and others.

        The groups are deleted one after the other. An error is definite if no group was deleted.
        """
        await subjects.groups.delete(self._running(), group_ids)
