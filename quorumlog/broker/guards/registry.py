"""The guard of each API, by its key. An API without one is refused to a broker with an authorizer.

Source: `KafkaApis`, `ControllerApis`, `ConfigHelper` and `AclApis` of Kafka 4.3, as a table in
docs/authorization.md. Requests that a broker sends to the controller are checked here, with the
client's principal.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from quorumlog.broker.guards import cluster, data, groups, topics, transactions
from quorumlog.broker.guards.cluster import cluster_guard
from quorumlog.broker.guards.groups import member_guard
from quorumlog.broker.guards.guard import Access, Asked, Guard
from quorumlog.broker.server.api import ApiHandler, BrokerContext, Handle, Reply
from quorumlog.invariants import require
from quorumlog.metadata_quorum.image.acls import AclOperation
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.schemas import RequestHeader

PRODUCE_KEY: Final = 0
OPEN: Final = frozenset({17, 18, 36, 71, 72})
"""SaslHandshake, ApiVersions, SaslAuthenticate and telemetry need no right."""
REFUSED_ANYWAY: Final = frozenset({38, 39, 40, 41, 76, 77, 78, 79, 88, 89, 90, 91, 92})
"""Delegation tokens, share groups and streams groups: no broker here has the feature."""

GUARDS: Final[Mapping[int, Guard]] = MappingProxyType(
    {
        PRODUCE_KEY: data.guard_produce,
        1: data.guard_fetch,
        2: data.guard_list_offsets,
        3: topics.guard_metadata,
        8: groups.guard_offset_commit,
        9: groups.guard_offset_fetch,
        10: groups.guard_find_coordinator,
        11: member_guard(generation_id=-1, protocol_name=""),
        12: member_guard(),
        13: member_guard(),
        14: member_guard(),
        15: groups.guard_describe_groups,
        16: groups.guard_list_groups,
        19: topics.guard_create_topics,
        20: topics.guard_delete_topics,
        21: data.guard_delete_records,
        22: transactions.guard_init_producer_id,
        23: data.guard_offset_for_leader_epoch,
        24: transactions.guard_add_partitions,
        25: transactions.guard_add_offsets,
        26: transactions.guard_end,
        27: transactions.guard_write_markers,
        28: transactions.guard_offset_commit,
        29: cluster_guard(AclOperation.DESCRIBE),
        30: cluster_guard(AclOperation.ALTER, cluster.refuse_creations),
        31: cluster_guard(AclOperation.ALTER, cluster.refuse_filters),
        32: topics.guard_describe_configs,
        33: topics.guard_alter_configs,
        34: cluster_guard(AclOperation.ALTER, cluster.refuse_moves),
        35: cluster_guard(AclOperation.DESCRIBE),
        37: topics.guard_create_partitions,
        42: groups.guard_delete_groups,
        43: cluster_guard(AclOperation.ALTER, cluster.refuse_elections),
        44: topics.guard_alter_configs,
        45: cluster_guard(AclOperation.ALTER, cluster.refuse_reassignments),
        46: cluster_guard(AclOperation.DESCRIBE),
        47: groups.guard_offset_delete,
        48: cluster_guard(AclOperation.DESCRIBE_CONFIGS, cluster.refuse_quota_descriptions),
        49: cluster_guard(AclOperation.ALTER_CONFIGS, cluster.refuse_quotas),
        50: cluster_guard(AclOperation.DESCRIBE),
        51: cluster_guard(AclOperation.ALTER, cluster.refuse_credentials),
        55: cluster_guard(AclOperation.DESCRIBE),
        57: cluster_guard(AclOperation.ALTER),
        60: cluster.guard_describe_cluster,
        61: data.guard_describe_producers,
        64: cluster_guard(AclOperation.ALTER),
        65: transactions.guard_describe,
        66: transactions.guard_list,
        68: groups.guard_consumer_heartbeat,
        69: groups.guard_consumer_describe,
        74: cluster_guard(AclOperation.DESCRIBE_CONFIGS),
        75: topics.guard_describe_topic_partitions,
        80: cluster_guard(AclOperation.ALTER),
        81: cluster_guard(AclOperation.ALTER),
        83: cluster_guard(AclOperation.CLUSTER_ACTION, cluster.refuse_share_states),
        84: cluster_guard(AclOperation.CLUSTER_ACTION, cluster.refuse_share_states),
        85: cluster_guard(AclOperation.CLUSTER_ACTION, cluster.refuse_share_states),
        86: cluster_guard(AclOperation.CLUSTER_ACTION, cluster.refuse_share_states),
        87: cluster_guard(AclOperation.CLUSTER_ACTION, cluster.refuse_share_states),
    }
)


def guarded(handlers: Mapping[int, ApiHandler]) -> Mapping[int, ApiHandler]:
    """Return the handlers with their guards. Raises InvariantViolation for an API without one."""
    return MappingProxyType({key: _guarded(handler) for key, handler in handlers.items()})


def _guarded(handler: ApiHandler) -> ApiHandler:
    key = handler.api_key
    guard = GUARDS.get(key)
    if guard is None:
        is_open = key in OPEN or key in REFUSED_ANYWAY
        require(is_open, f"API key {key} has a guard, or needs no right")
        return handler
    run = handler.handle_run
    return replace(
        handler,
        handle=_checked(APIS[key].name, guard, handler.handle),
        handle_run=None if run is None else data.guard_run(run),
    )


def _checked(api: str, guard: Guard, handle: Handle) -> Handle:
    def checked(context: BrokerContext, header: RequestHeader, request: Any) -> Reply:
        def forward(part: Any) -> Reply:
            return handle(context, header, part)

        return guard(Asked(Access(context, api), header, request, forward))

    return checked
