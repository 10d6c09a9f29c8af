"""The administrator without an event loop."""

from collections.abc import Iterable, Mapping
from typing import Final, Unpack

from quorumlog.client import descriptions as about
from quorumlog.client.admin import Admin
from quorumlog.client.admin.choices import ConfigText, Election, OffsetSpec, ResourceKind
from quorumlog.client.errors import KafkaError
from quorumlog.client.records import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from quorumlog.client.settings import AdminOptions, BootstrapServers, IsolationLevel
from quorumlog.client.sync.blocking import Blocking
from quorumlog.wire.codec.message import Request, ResponseT

_NOTHING: Final[Mapping[str, ConfigText]] = {}


class SyncAdmin(Blocking[Admin]):
    """Admin without an event loop. Every method is described there."""

    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[AdminOptions]
    ) -> None:
        super().__init__(Admin(bootstrap_servers, **options))

    def request(
        self,
        request: Request[ResponseT],
        *,
        broker_id: int | None = None,
        timeout_ms: float | None = None,
    ) -> ResponseT:
        """Send any request, once, to one broker (None: any), and return its answer unchecked."""
        return self._run(self._client.request(request, broker_id=broker_id, timeout_ms=timeout_ms))

    def create_topics(
        self, topics: Iterable[about.NewTopic], *, validate_only: bool = False
    ) -> None:
        """Create topics. Raises the first topic's error, definite if none was created."""
        self._run(self._client.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics. Raises the first topic's error, definite if none was deleted."""
        self._run(self._client.delete_topics(names))

    def create_partitions(
        self, counts: Mapping[str, int | about.NewPartitions], *, validate_only: bool = False
    ) -> None:
        """Grow topics to that many partitions in total. Keys may then map to other partitions."""
        self._run(self._client.create_partitions(counts, validate_only=validate_only))

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._run(self._client.list_topics(include_internal=include_internal))

    def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> dict[str, about.TopicDescription]:
        """Describe topics, None: all. UNKNOWN_TOPIC_OR_PARTITION for one that is not there."""
        return self._run(self._client.describe_topics(names))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, election: Election = "preferred"
    ) -> dict[TopicPartition, KafkaError | None]:
        """Make the preferred replicas lead again (None: of all partitions), or any replica."""
        return self._run(self._client.elect_leaders(partitions, election))

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec | int],
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the offset at the start, the end or a time (ms) of each partition."""
        return self._run(self._client.list_offsets(specs, isolation_level))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below these offsets (-1: below the high watermark)."""
        return self._run(self._client.delete_records(before))

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[about.ProducerStateDescription, ...]]:
        """Return which idempotent producers each partition's leader remembers (KIP-664)."""
        return self._run(self._client.describe_producers(partitions))

    def describe_configs(self, kind: ResourceKind, name: str) -> dict[str, about.ConfigValue]:
        """Return the settings of a topic (by name) or broker (by id, as text)."""
        return self._run(self._client.describe_configs(kind, name))

    def alter_configs(
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
        """Change single settings, leave the others (KIP-339): all of the changes, or none."""
        self._run(
            self._client.alter_configs(
                kind,
                name,
                values,
                delete=delete,
                append=append,
                subtract=subtract,
                validate_only=validate_only,
            )
        )

    def list_config_resources(
        self, kinds: Iterable[str] | None = None
    ) -> list[about.ConfigResource]:
        """Return what has settings, None: of every kind; sorted (KIP-1142)."""
        return self._run(self._client.list_config_resources(kinds))

    def describe_cluster(self) -> about.ClusterDescription:
        """Describe the cluster as one broker sees it now."""
        return self._run(self._client.describe_cluster())

    def describe_quorum(self) -> about.QuorumDescription:
        """Describe the metadata quorum as its leader sees it (KIP-595)."""
        return self._run(self._client.describe_quorum())

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, dict[str, about.LogDirDescription]]:
        """Return the log directories of brokers (None: of all), by path, with every log's size."""
        return self._run(self._client.describe_log_dirs(brokers))

    def list_consumer_groups(self) -> list[about.GroupListing]:
        """Ask every broker for the groups that it coordinates; sorted by name."""
        return self._run(self._client.list_consumer_groups())

    def describe_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, about.GroupDescription]:
        """Describe classic groups; one that does not exist is described as "Dead"."""
        return self._run(self._client.describe_consumer_groups(group_ids))

    def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed, None: for all its partitions."""
        return self._run(self._client.list_consumer_group_offsets(group_id, partitions))

    def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> None:
        """Commit offsets in the name of a group without members, also of one that is new."""
        self._run(self._client.alter_consumer_group_offsets(group_id, offsets))

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Forget what a group has committed for these partitions (KIP-496)."""
        self._run(self._client.delete_consumer_group_offsets(group_id, partitions))

    def delete_consumer_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, with their offsets. Raises NON_EMPTY_GROUP and others."""
        self._run(self._client.delete_consumer_groups(group_ids))
