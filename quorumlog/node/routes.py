"""What the control listener answers to people and monitors: health, readiness, status as JSON."""

from typing import TYPE_CHECKING, Any

from aiohttp import web

from quorumlog.metadata_quorum.image import ClusterImage

if TYPE_CHECKING:
    from quorumlog.node.node import Node


def add_routes(app: web.Application, node: "Node") -> None:
    """Serve beside the quorum's RPCs."""

    async def healthz(_: web.Request) -> web.Response:
        """Answer 200 as long as the process works."""
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        """Answer 200 once the node is ready: its broker is unfenced, or its quorum has a leader."""
        is_ready = node.ready.is_set()
        return web.Response(
            text="ready\n" if is_ready else "not ready\n", status=200 if is_ready else 503
        )

    async def status(_: web.Request) -> web.Response:
        """Answer what this node knows of the cluster."""
        return web.json_response(describe(node))

    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/api/v1/status", status),
        ]
    )


def describe(node: "Node") -> dict[str, Any]:
    """Return this node's view, as plain values."""
    image = node.quorum.image
    return {
        "node_id": node.config.node_id,
        "cluster_id": node.config.cluster_id,
        "ready": node.ready.is_set(),
        "controller_id": image.controller_id,
        "metadata_offset": image.end_offset,
        "quorum": dict(node.quorum.describe()),
        "directory_ids": {
            str(broker_id): broker.directory_id for broker_id, broker in image.brokers.items()
        },
        "fenced": {str(broker_id): broker.fenced for broker_id, broker in image.brokers.items()},
        "topics": _topics(image),
        "requests": {} if node.broker is None else dict(node.broker.server.stats.requests),
    }


def _topics(image: ClusterImage) -> dict[str, Any]:
    return {
        name: {
            "partitions": [
                {
                    "leader": partition.leader_id,
                    "leader_epoch": partition.leader_epoch,
                    "partition_epoch": partition.partition_epoch,
                    "isr": list(partition.isr),
                    "elr": list(partition.elr),
                    "replicas": list(partition.replicas),
                }
                for partition in topic.partitions
            ]
        }
        for name, topic in image.topics.items()
    }
