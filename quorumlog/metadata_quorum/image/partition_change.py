"""Applies a PartitionChange record to the image of a partition."""

from collections.abc import Collection

from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.wire.codec.identifiers import BrokerId, Epoch

Directories = tuple[tuple[BrokerId, str], ...]


def changed(old: PartitionImage, record: PartitionChange) -> PartitionImage:
    """Return the partition after a change; a `leader` in the record starts a new leader epoch."""
    is_led_anew = record.leader is not None
    adding, removing = record.adding_replicas, record.removing_replicas
    last_known_leader, is_recovering = record.last_known_leader, record.is_recovering
    replicas = old.replicas if record.replicas is None else record.replicas
    last_known_elr = record.last_known_elr
    directories = old.directories if record.directories is None else record.directories
    return PartitionImage(
        leader_id=old.leader_id if record.leader is None else record.leader,
        leader_epoch=Epoch(old.leader_epoch + 1) if is_led_anew else old.leader_epoch,
        partition_epoch=Epoch(old.partition_epoch + 1),
        replicas=replicas,
        isr=old.isr if record.isr is None else record.isr,
        elr=old.elr if record.elr is None else record.elr,
        adding_replicas=old.adding_replicas if adding is None else adding,
        removing_replicas=old.removing_replicas if removing is None else removing,
        last_known_leader=(
            old.last_known_leader if last_known_leader is None else last_known_leader
        ),
        is_recovering=old.is_recovering if is_recovering is None else is_recovering,
        directories=kept_directories(directories, replicas),
        last_known_elr=old.last_known_elr if last_known_elr is None else last_known_elr,
    )


def kept_directories(directories: Directories, replicas: Collection[BrokerId]) -> Directories:
    """Return the directories of current replicas: a removed replica may return elsewhere."""
    if all(broker_id in replicas for broker_id, _ in directories):
        return directories
    return tuple(one for one in directories if one[0] in replicas)
