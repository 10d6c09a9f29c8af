"""A clean state in a shared cluster: without the contents that earlier tests have left."""

from typing import TYPE_CHECKING

from quorumlog.cluster.resets import StillUsed, reset

if TYPE_CHECKING:
    from quorumlog.cluster import LocalCluster

__all__ = ["StillUsed", "clean"]


def clean(cluster: "LocalCluster") -> None:
    """Return a cluster to the contents of a new one, whatever its mark.

    A producer of an open transaction is fenced. Raises StillUsed for a group with members,
    KafkaError, TookTooLong.
    """
    reset(cluster)
