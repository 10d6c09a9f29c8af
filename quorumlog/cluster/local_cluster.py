"""A whole cluster on this machine, one OS process per node, for tests, demos and chaos."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from quorumlog.cluster.cluster_nodes import ClusterNodes

if TYPE_CHECKING:
    from quorumlog.cluster.marks import Mark
    from quorumlog.cluster.waits import Seen


class LocalCluster(ClusterNodes):
    """Start, stop, kill and pause the nodes of one cluster directory; wait, and move its state.

    Use it as a context manager: `with LocalCluster(nodes=3) as cluster: ... cluster.bootstrap`.
    Without `directory` it has a temporary directory, which is removed at the end of the block.
    Its nodes end with this process, however that ends, unless they are `detached`.
    All methods block; all raise ClusterError with a line that gives the remedy, and InvalidArgument
    for invalid arguments.
    """

    marked: "Mark | None" = None
    """The contents that `reset` returns to; None: those of a new cluster."""

    @cached_property
    def advances_received(self) -> dict[int, int]:
        """By node: the number of advances that its clock has made, at least."""
        return {}

    def resume(self, node_id: int) -> None:
        """SIGCONT; the node's clock then makes the advances that it has missed."""
        super().resume(node_id)
        if len(self.spec.advances) > self.advances_received.get(node_id, 0):
            from quorumlog.cluster import requested_time

            requested_time.catch_up(self, node_id)

    def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
    ) -> dict[str, Any]:
        """Advance the wall clock of all nodes, and make all passes that go by it.

        Records, offsets, producer ids and transactions become older; sessions, elections and the
        timeouts of requests do not. Dead and paused nodes follow with their next start or resume.
        Returns `ahead_ms` (in all), `nodes`, `later` (the nodes that follow), `removed`: records,
        segments and bytes by partition. Raises InvalidArgument, also for a step back.
        """
        from quorumlog.cluster import requested_time

        by_ms = requested_time.in_ms(days, hours, minutes, seconds, ms)
        return requested_time.advance(self, by_ms)

    def apply_retention(self, topic: str) -> dict[str, Any]:
        """Delete the expired and surplus segments of a topic now, on every running broker.

        Returns `nodes` and `removed`, as `advance`. Raises InvalidArgument: no such topic, or it
        has no retention.
        """
        from quorumlog.cluster import requested_time

        return requested_time.request_pass(self, "apply-retention", topic)

    def compact(self, topic: str) -> dict[str, Any]:
        """Compact the logs of a topic now, the active segments too, on every running broker.

        Returns `nodes` and `removed`, as `advance`. Raises InvalidArgument: no such topic, or it is
        not compacted.
        """
        from quorumlog.cluster import requested_time

        return requested_time.request_pass(self, "compact", topic)

    def expire_groups(self) -> dict[str, Any]:
        """Delete all expired offsets now; return `nodes`, and `offsets`: their number by group."""
        from quorumlog.cluster import requested_time

        return requested_time.expire_groups(self)

    def node_status(self, node_id: int) -> dict[str, Any] | None:
        """Return a node's view of itself and the cluster (GET /api/v1/status); None: no answer."""
        from quorumlog.cluster.control_connections import operator_context
        from quorumlog.cluster.node_views import view_at  # a start of a cluster does not need it

        address = self.spec.control_address(self.spec.node(node_id))
        return view_at(address, operator_context(self.directory))

    def status(self) -> dict[str, Any]:
        """Describe the nodes, and the cluster in the view of the node with the newest metadata.

        `quorum`: the voters that answer, whether they are a majority, and the node of the view.
        Without a majority `controller_id` is None, and `topics` are outdated. `state`: NodeState.
        `native_lane`: "on", or why not; None: the node does not answer.
        """
        from quorumlog.cluster.node_views import describe

        return describe(self)

    def wait(
        self,
        *,
        group: str | None = None,
        state: str | None = None,
        members: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        isr: int | None = None,
        leader: int | Literal["any"] | None = None,
        leader_moved_from: int | None = None,
        committed: int | Literal["end"] | None = None,
        timeout_s: float = 15.0,
    ) -> "Seen":
        """Wait until all given conditions hold, and return the state that was seen.

        `topic`: each partition (or `partition`) has a leader that runs, in the metadata of every
        unfenced broker; `leader`: this node leads; `leader_moved_from`: this node does not;
        `isr`: so many replicas are in sync. `group`: it has this `state` (Kafka's name; "Dead": no
        such group), so many `members`, and has `committed` offsets of at least this sum, or all
        records up to the "end", of `topic` and `partition` if they are given.
        In a coroutine, await the result. Raises TookTooLong with the last state, InvalidArgument.
        """
        from quorumlog.cluster import cluster_waits, conditions

        wanted = conditions.of_arguments(
            group=group,
            state=state,
            members=members,
            topic=topic,
            partition=partition,
            isr=isr,
            leader=leader,
            moved_from=leader_moved_from,
            committed=committed,
        )
        return cluster_waits.wait(self, *wanted, timeout_s=timeout_s)

    def settled(self, *, timeout_s: float = 15.0) -> "Seen":
        """Wait until nothing changes by itself any more.

        Every node runs, or is dead or paused and fenced; each partition has a leader, and all live
        replicas in sync; no partition is reassigned, no group rebalances, and every broker has the
        newest metadata. In a coroutine, await the result. Raises TookTooLong with the first lack.
        """
        from quorumlog.cluster import cluster_waits

        return cluster_waits.settled(self, timeout_s)

    def mark(self) -> None:
        """Remember the topics, groups, settings, quotas, users and ACLs, for `reset`."""
        from quorumlog.cluster.resets import read_mark

        self.marked = read_mark(self)

    def reset(self) -> None:
        """Return the contents to the last `mark`; without a mark, to those of a new cluster.

        Open transactions are aborted. Returns when every unfenced broker has the result. Raises
        StillUsed for a group with members, ClusterError for records that only `restore` brings
        back, KafkaError.
        """
        from quorumlog.cluster import resets

        resets.reset(self, self.marked)

    def snapshot(self, name: str) -> None:
        """Keep a copy of all log directories under a name, in the cluster's directory.

        The running nodes are stopped cleanly for it, and started again. Raises InvalidArgument for
        a name in use, ClusterError if a node did not stop cleanly or the disk is full: then there
        is no snapshot, and the nodes run again.
        """
        from quorumlog.cluster import snapshots

        snapshots.take(self, name)

    def restore(self, name: str) -> None:
        """Put back the log directories of a snapshot, of all nodes at once.

        All later records, topics and commits are given up. The nodes that run are killed and
        started again: open clients lose their connections, and their view of epochs: open new ones.
        Raises InvalidArgument for an unknown name, ClusterError before any change if the snapshot
        cannot be restored.
        """
        from quorumlog.cluster import snapshots

        snapshots.restore(self, name)
