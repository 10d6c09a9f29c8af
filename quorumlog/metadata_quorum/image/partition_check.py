"""The invariants of every partition, checked after each record."""

from quorumlog.invariants import require
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.wire.codec.identifiers import NO_LEADER


def check_partition(partition: PartitionImage) -> None:
    """Raise InvariantViolation if isr, elr and the leader do not fit the replicas."""
    isr, replicas = {*partition.isr}, {*partition.replicas}
    if (
        isr <= replicas
        and (partition.leader_id in isr or partition.leader_id == NO_LEADER)
        and not (partition.elr or partition.adding_replicas or partition.removing_replicas)
        and partition.last_known_leader == NO_LEADER
        and not partition.last_known_elr
    ):
        return  # the common case
    elr = {*partition.elr}
    require(isr | elr <= replicas and not isr & elr, "2: isr and elr are apart, within replicas")
    require(partition.leader_id in {-1, *isr}, "2: the leader is in isr")
    adding, removing = {*partition.adding_replicas}, {*partition.removing_replicas}
    is_apart = adding <= replicas and removing < replicas and not adding & removing
    is_led = partition.leader_id != NO_LEADER
    is_last = partition.last_known_leader in {NO_LEADER, *replicas}
    require(
        is_last and (not is_led or partition.last_known_leader == NO_LEADER),
        "2: the last known leader is a replica of a partition without a leader",
    )
    last_known_elr = {*partition.last_known_elr}
    require(
        last_known_elr <= replicas and not last_known_elr & (isr | elr),
        "2: the last known elr is apart from isr and elr, within replicas",
    )
    require(is_apart, "2: added and removed replicas are apart, within replicas; one stays")
