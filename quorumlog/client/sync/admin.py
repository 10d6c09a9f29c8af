"""The administrator without an event loop."""

from collections.abc import Iterable
from typing import Unpack

from quorumlog.client.admin import Admin, ResourceKind
from quorumlog.client.descriptions import (
    ClusterDescription,
    ConfigValue,
    GroupDescription,
    GroupListing,
    NewTopic,
    TopicDescription,
)
from quorumlog.client.records import OffsetAndMetadata, TopicPartition
from quorumlog.client.settings import AdminOptions, BootstrapServers
from quorumlog.client.sync.blocking import Blocking


class SyncAdmin(Blocking[Admin]):
    """Admin without an event loop."""

    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[AdminOptions]
    ) -> None:
        super().__init__(Admin(bootstrap_servers, **options))

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create topics."""
        self._run(self._client.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics."""
        self._run(self._client.delete_topics(names))

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._run(self._client.list_topics(include_internal=include_internal))

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """Describe topics, None: all."""
        return self._run(self._client.describe_topics(names))

    def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster as one broker sees it now."""
        return self._run(self._client.describe_cluster())

    def describe_configs(self, kind: ResourceKind, name: str) -> dict[str, ConfigValue]:
        """Return the settings of a topic or broker."""
        return self._run(self._client.describe_configs(kind, name))

    def list_consumer_groups(self) -> list[GroupListing]:
        """List all groups."""
        return self._run(self._client.list_consumer_groups())

    def describe_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Describe classic groups."""
        return self._run(self._client.describe_consumer_groups(group_ids))

    def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed."""
        return self._run(self._client.list_consumer_group_offsets(group_id, partitions))

    def delete_consumer_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members."""
        self._run(self._client.delete_consumer_groups(group_ids))
