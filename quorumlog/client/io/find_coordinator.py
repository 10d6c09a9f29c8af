"""Finds the coordinator of a group or of a transactional id (KIP-98)."""

from quorumlog.client.core.metadata_cache import Node
from quorumlog.client.core.transaction_requests import CoordinatorType
from quorumlog.client.io.cluster import QUESTION_TIMEOUT_MS, Cluster, Purpose, check
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest


async def find_coordinator(cluster: Cluster, kind: CoordinatorType, key: str) -> int:
    """Return the coordinator's broker id, after connecting to it. Raises KafkaError."""
    request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
    response = await cluster.send(None, request, timeout_ms=QUESTION_TIMEOUT_MS)
    if response.coordinators:
        found = response.coordinators[0]
        check(found.error_code, found.error_message or "")
        node = Node(found.node_id, found.host, found.port)
    else:
        check(response.error_code, response.error_message or "")
        node = Node(response.node_id, response.host, response.port)
    cluster.metadata.nodes.setdefault(node.broker_id, node)
    await cluster.connect(node.broker_id, Purpose.GROUP)
    return node.broker_id
