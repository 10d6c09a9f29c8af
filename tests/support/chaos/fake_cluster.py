"""A fake LocalCluster for a back end, without processes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quorumlog.cluster import ClusterError, NodeFailed
from quorumlog.cluster.layout import NodeSpec


class FakeNode:
    is_broker = True
    roles = ("broker", "controller")

    def __init__(self, node_id: int) -> None:
        self.id = node_id


class FakeCluster:
    """Three nodes; `refuses` are those that do not get ready, `deaf` those that just ended."""

    bootstrap = "127.0.0.1:1"
    directory = Path("nowhere")

    def __init__(self) -> None:
        self.nodes: Sequence[FakeNode | NodeSpec] = [FakeNode(node_id) for node_id in (1, 2, 3)]
        self.running, self.paused = {1, 2, 3}, set[int]()
        self.refuses: set[int] = set()
        self.deaf: set[int] = set()
        self.does_not_stop = False
        self.leader: int | None = 1
        self.all_paused: asyncio.Event | None = None  # all but the leader

    def own_client(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.bootstrap}

    def pid(self, node_id: int) -> int | None:
        return node_id if node_id in self.running else None

    def node_status(self, node_id: int) -> dict[str, Any] | None:
        assert node_id not in self.paused, "it would not answer"
        partitions = [] if self.leader is None else [{"leader": self.leader, "isr": [1, 2, 3]}]
        return {
            "metadata_offset": 5,
            "controller_id": 2,
            "topics": {"t": {"partitions": partitions}},
        }

    def kill(self, *node_ids: int) -> None:
        self.running -= self.deaf
        for node_id in node_ids:
            if node_id not in self.running:
                raise ClusterError(f"node {node_id} does not run")
            self.running.discard(node_id)
            self.paused.discard(node_id)

    def stop_node(self, node_id: int) -> None:
        if node_id not in self.running:
            raise ClusterError(f"node {node_id} does not run")
        if self.does_not_stop:
            raise NodeFailed(f"node {node_id} does not stop")
        self.running.discard(node_id)

    def pause(self, node_id: int) -> None:
        self.paused.add(node_id)
        if self.all_paused is not None and len(self.paused) == 2:
            self.all_paused.set()

    def resume(self, node_id: int) -> None:
        if node_id not in self.running:
            raise ClusterError(f"node {node_id} does not run")
        self.paused.discard(node_id)

    def start_node(self, node_id: int, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.running.add(node_id)
        if node_id in self.refuses:
            raise NodeFailed(f"node {node_id} is not ready in time")

    def last_words(self, node_id: int) -> str:
        return f"node {node_id} ended"
