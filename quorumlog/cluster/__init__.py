"""Clusters on this machine: start, stop, kill and pause their nodes."""

from quorumlog.cluster.defaults import FAST_DEFAULTS
from quorumlog.cluster.errors import ClusterError, InvalidArgument, NodeFailed
from quorumlog.cluster.layout import ClusterSpec, NodeSpec
from quorumlog.cluster.local_cluster import LocalCluster
from quorumlog.cluster.shape import ClusterShape

__all__ = [
    "FAST_DEFAULTS",
    "ClusterError",
    "ClusterShape",
    "ClusterSpec",
    "InvalidArgument",
    "LocalCluster",
    "NodeFailed",
    "NodeSpec",
]
