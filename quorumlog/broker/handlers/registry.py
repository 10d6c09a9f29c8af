"""Every API that this broker answers, by key; only these are advertised."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from quorumlog.broker.handlers import (
    alter_configs,
    api_versions,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from quorumlog.broker.server.api import ApiHandler

HANDLERS: Final[Mapping[int, ApiHandler]] = MappingProxyType(
    {
        module.handle.api_key: module.handle
        for module in (
            produce,
            fetch,
            list_offsets,
            metadata,
            offset_commit,
            offset_fetch,
            find_coordinator,
            join_group,
            heartbeat,
            leave_group,
            sync_group,
            describe_groups,
            list_groups,
            api_versions,
            create_topics,
            delete_topics,
            delete_records,
            init_producer_id,
            offset_for_leader_epoch,
            describe_configs,
            alter_configs,
            create_partitions,
            delete_groups,
            elect_leaders,
            incremental_alter_configs,
            describe_quorum,
            offset_delete,
            describe_cluster,
            describe_log_dirs,
            describe_producers,
            consumer_group_heartbeat,
            list_config_resources,
            describe_topic_partitions,
        )
    }
)
