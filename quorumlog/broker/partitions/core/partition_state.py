"""The state of one replica, in any role."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, assert_never

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.divergence import EpochHistory
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.roles import LEGAL_CHANGES, Follower, Leader, Role, Unassigned
from quorumlog.invariants import require
from quorumlog.metadata_quorum.image import BrokerImage
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_LEADER, BrokerId, Epoch, Offset

NO_EFFECTS: Final[Sequence[Effect]] = ()


@dataclass(slots=True, eq=False)
class PartitionState:
    """The state of one replica of one partition: the rules of this package read and change it.

    `partition_invariants.py` lists its invariants. `leader_id` is the leader of `leader_epoch`, or
    NO_LEADER. `is_member`: this replica is in the metadata's ISR or ELR. Offsets are of this
    replica's log; `log_end_offset` is exclusive. With `acks_after_flush` the replica counts only
    for records below `flushed_offset`.
    """

    broker_id: BrokerId
    epochs: EpochHistory  # replaced when an equal log takes the place of this log
    _: KW_ONLY
    replica_lag_time_max_ms: int
    log_start_offset: Offset
    log_end_offset: Offset
    high_watermark: Offset
    acks_after_flush: bool
    role: Role = field(default_factory=Unassigned, init=False)
    leader_id: BrokerId = field(default=NO_LEADER, init=False)
    is_member: bool = field(default=False, init=False)
    leader_epoch: Epoch = field(default=NO_EPOCH, init=False)
    partition_epoch: Epoch = field(default=NO_EPOCH, init=False)
    min_insync_replicas: int = field(default=1, init=False)
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict, init=False)
    flushed_offset: Offset = field(init=False)
    kept_log_start_offset: Offset = field(init=False)

    def __post_init__(self) -> None:
        self.flushed_offset = self.log_end_offset  # the records found on disk are durable
        self.kept_log_start_offset = self.log_start_offset  # on disk, as a log is just opened
        # A checkpoint may be ahead of a log that lost its tail, or behind a log that lost its head.
        within_log = min(self.high_watermark, self.log_end_offset)
        self.high_watermark = max(within_log, self.log_start_offset)

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return isinstance(self.role, Leader)

    @property
    def isr(self) -> frozenset[BrokerId]:
        """The committed ISR, if this replica leads; empty if not."""
        return self.role.isr if isinstance(self.role, Leader) else frozenset()

    @property
    def is_assigned(self) -> bool:
        """Whether this replica leads or follows."""
        return not isinstance(self.role, Unassigned)

    @property
    def has_followers(self) -> bool:
        """Whether this replica leads, and the partition has other replicas."""
        return isinstance(self.role, Leader) and bool(self.role.followers)

    @property
    def is_contradicted(self) -> bool:
        """Whether the leader lacks records that are committed here."""
        return isinstance(self.role, Follower) and self.role.is_contradicted

    @property
    def counted_offset(self) -> Offset:
        """The offset (exclusive) up to which this replica's records count."""
        return self.flushed_offset if self.acks_after_flush else self.log_end_offset

    def log_reached(self, event: events.RecordsAppended | events.LogFlushed) -> None:
        """Apply a new log end or flushed offset."""
        if isinstance(event, events.RecordsAppended):
            self.log_end_offset = event.log_end_offset
        else:  # the log may have been truncated meanwhile
            flushed_offset = min(event.flushed_offset, self.log_end_offset)
            self.flushed_offset = max(self.flushed_offset, flushed_offset)

    def become(self, role: Role) -> None:
        """Change the role. No other code writes `self.role`."""
        change = f"{type(self.role).__name__} -> {type(role).__name__}"
        require(type(role) in LEGAL_CHANGES[type(self.role)], f"legal change: {change}")
        self.role = role

    def log_changed(self, event: events.LogEvent) -> None:
        """Apply a change that the driver has made to the log."""
        match event:
            case events.LogTruncated(log_end_offset=end):
                self.log_end_offset = end
                self.flushed_offset = min(self.flushed_offset, end)
                self.high_watermark = min(self.high_watermark, end)
                # The log start may lie within a batch that is cut.
                self.log_start_offset = min(self.log_start_offset, end)
                self.kept_log_start_offset = min(self.kept_log_start_offset, end)
            case events.LogStartedOver(offset=offset):
                self.log_start_offset = self.log_end_offset = self.high_watermark = offset
                self.flushed_offset = offset
                self.kept_log_start_offset = offset
            case events.LogStartRose(log_start_offset=start):
                self.log_start_offset = max(self.log_start_offset, start)
            case events.LogStartKept(log_start_offset=start):
                # The log may have been truncated below it meanwhile.
                kept = min(start, self.log_start_offset)
                self.kept_log_start_offset = max(self.kept_log_start_offset, kept)
            case _:
                assert_never(event)
