"""Every API that this broker answers, by key: what is not here is not advertised."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from quorumlog.broker.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_quorum,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from quorumlog.broker.handlers.api import ApiHandler

HANDLERS: Final[Mapping[int, ApiHandler]] = MappingProxyType(
    {
        module.HANDLER.api_key: module.HANDLER
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
            init_producer_id,
            offset_for_leader_epoch,
            describe_configs,
            alter_configs,
            create_partitions,
            delete_groups,
            elect_leaders,
            incremental_alter_configs,
            describe_quorum,
            describe_cluster,
        )
    }
)
