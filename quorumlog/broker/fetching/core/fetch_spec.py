"""One fetch request as the broker handles it, independent of its version on the wire."""

from dataclasses import dataclass, field

from quorumlog.broker.fetching.core.fetch_sessions import FetchSession
from quorumlog.broker.fetching.core.response_memory import ResponseAccount
from quorumlog.broker.partitions.core.data_path import (
    DEBUG_REPLICA,
    NO_REPLICA,
    PartitionFetch,
    ReadEnd,
)
from quorumlog.broker.partitions.core.fetch_wakeup import ANY_CHANGE, FetchWakeup, FetchWakeups
from quorumlog.wire.codec.identifiers import BrokerId


@dataclass(slots=True, kw_only=True)
class FetchSpec:
    """A whole fetch request, without its wire version.

    `replica_id` is NO_REPLICA for a consumer, DEBUG_REPLICA for a debugging consumer. Durations in
    ms, sizes in bytes.
    """

    replica_id: BrokerId
    replica_epoch: int  # the follower's broker epoch; -1: do not check
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: list[PartitionFetch]
    account: ResponseAccount | None  # of a consumer's connection: counts the bytes read
    session: FetchSession | None  # if set, `partitions` are its partitions to check
    may_read_follower: bool  # a consumer that supports KIP-392
    near_rack: str  # if set, a replica in this rack is preferred
    is_read_committed: bool  # a consumer that sees no open or aborted transaction
    awaits_commits: bool  # a follower that serves consumers: commits complete its fetch
    may_lend: bool = True  # its connection can send ranges of files
    is_from_follower: bool = field(init=False)  # the leader then records its fetch offsets
    read_end: ReadEnd = field(init=False)  # consumers read only committed records
    awaited: FetchWakeups = field(init=False)  # the changes that may complete it once delayed

    def __post_init__(self) -> None:
        """Compute the values that each step of the fetch needs."""
        self.is_from_follower = self.replica_id >= 0
        if self.replica_id != NO_REPLICA:
            self.read_end = ReadEnd.LOG_END
        elif self.is_read_committed:
            self.read_end = ReadEnd.LAST_STABLE
        else:
            self.read_end = ReadEnd.HIGH_WATERMARK
        if self.read_end is not ReadEnd.LOG_END:  # the last stable offset moves with commits alone
            self.awaited = FetchWakeup.COMMITTED | FetchWakeup.CHANGED
        elif self.is_from_follower:
            self.awaited = (
                ANY_CHANGE if self.awaits_commits else ANY_CHANGE & ~FetchWakeup.COMMITTED
            )
        else:  # it may read a follower, whose high watermark advances with its appends
            self.awaited = ANY_CHANGE & ~FetchWakeup.LOG_START

    @property
    def is_leader_only(self) -> bool:
        """Whether only the leader may answer: other replicas serve some consumers (KIP-392)."""
        is_consumer = self.replica_id == NO_REPLICA and self.may_read_follower
        return self.replica_id > DEBUG_REPLICA and not is_consumer
