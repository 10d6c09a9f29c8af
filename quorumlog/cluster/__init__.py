"""Clusters on this machine: start, stop, kill and pause their nodes."""

from quorumlog.cluster.errors import ClusterError, InvalidArgument, NodeFailed
from quorumlog.cluster.layout import FAST_DEFAULTS, ClusterShape, ClusterSpec, NodeSpec
from quorumlog.cluster.local_cluster import LocalCluster

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
