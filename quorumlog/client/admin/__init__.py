"""The asynchronous administrator, by subject: topics, records, configuration, cluster, groups."""

from quorumlog.client.admin.admin import Admin
from quorumlog.client.admin.configs import ResourceKind
from quorumlog.client.admin.records import OffsetSpec
from quorumlog.client.admin.topics import Election

__all__ = ["Admin", "Election", "OffsetSpec", "ResourceKind"]
