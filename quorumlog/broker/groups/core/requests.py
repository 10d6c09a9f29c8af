"""The requests of members and administrators to a group, and the responses.

Each request builds its own refusal, so that the code that routes requests needs no table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import ZERO_UUID, Message, wire
from quorumlog.wire.codec.transaction_markers import TransactionMarker

R_co = TypeVar("R_co", covariant=True)

# Errors of a refused append, whose records are not in the log. As in Kafka, each error has one code
# for all requests (CoordinatorOperationExceptionHelper, appendGroupMetadataErrorToResponseError).
NOT_WRITTEN: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    # In transactions: the epoch of the producer or of its coordinator is old.
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest(Generic[R_co]):
    """A request about one group, whose response is an `R_co`."""

    group_id: str

    def refuse(self, error_code: ErrorCode) -> R_co:
        """Return a response that carries only `error_code`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """One member, as the leader of a generation gets it in its JoinGroup response."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The response to JoinGroup. Only the leader gets `members`.

    With MEMBER_ID_REQUIRED, the client must join again as `member_id`.
    """

    error_code: ErrorCode
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(GroupRequest[JoinResult]):
    """JoinGroup. `new_member_id` is the member id to use if the member is new."""

    member_id: str
    new_member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # (name, metadata), the preferred one first
    requires_known_member_id: bool = True  # v4 on (KIP-394)
    supports_skipping_assignment: bool = True  # v9 on (KIP-814)

    def refuse(self, error_code: ErrorCode) -> JoinResult:
        """Return the error with the member id: some clients adopt the id even from an error."""
        return JoinResult(error_code=error_code, member_id=self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The response to SyncGroup. `assignment`: the member's part, opaque bytes from the leader."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(GroupRequest[SyncResult]):
    """SyncGroup. `assignments` (by member id) are used only if the leader sends them."""

    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)

    def refuse(self, error_code: ErrorCode) -> SyncResult:
        """Refuse without an assignment. During a load, REBALANCE_IN_PROGRESS makes it join again.

        # DEVIATION: Kafka 4 answers COORDINATOR_LOAD_IN_PROGRESS, which ends a Java consumer: it
        # handles that code only in JoinGroup. Kafka before 4 answered REBALANCE_IN_PROGRESS.
        # docs/decisions/0031-group-conversions.md
        """
        is_loading = error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return SyncResult(error_code=ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CodeRequest(GroupRequest[ErrorCode]):
    def refuse(self, error_code: ErrorCode) -> ErrorCode:
        """Return the code, which is the whole response."""
        return error_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(_CodeRequest):
    """Heartbeat: the member is alive; `generation_id` is the last generation it received."""

    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """A member to remove, named by member id, by instance id, or by both, which must agree."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResult:
    """The response to LeaveGroup. `members[i]`: the outcome for the i-th member of the request."""

    error_code: ErrorCode
    members: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(GroupRequest[LeaveResult]):
    """LeaveGroup; several members at once since v3 (KIP-345)."""

    members: tuple[LeavingMember, ...]

    def refuse(self, error_code: ErrorCode) -> LeaveResult:
        """Refuse all members."""
        return LeaveResult(error_code=error_code)


class CommittedOffset(Message):
    """The next offset to consume: an OffsetCommitValue of `__consumer_offsets`. Immutable.

    `leader_epoch` -1: none. Times in ms since 1970. `topic_id`: the id of the topic at the commit;
    zeros in a record of version 3, as earlier releases write it.
    """

    offset: int = wire("int64", default=-1)
    leader_epoch: int = wire("int32", "3+", default=-1)
    metadata: str = wire("string", default="")
    commit_timestamp_ms: int = wire("int64", default=-1)
    topic_id: bytes = wire("uuid", "4+", default=ZERO_UUID, tag=0)

    VERSIONS = range(5)
    FLEXIBLE_SINCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The response to OffsetCommit, TxnOffsetCommit or OffsetDelete.

    `error_code` is for the whole request, `partitions` for each partition that was checked.
    """

    error_code: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionsRequest(GroupRequest[CommitResult]):
    def refuse(self, error_code: ErrorCode) -> CommitResult:
        """Refuse all partitions."""
        return CommitResult(error_code=error_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit(_PartitionsRequest):
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets(_Commit):
    """OffsetCommit; generation -1 and member "" from a consumer that is no member.

    A member of a consumer group sends its member epoch as the generation.
    """

    api_version: int = 9  # from 9 on, members of consumer groups send their member epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTransactionalOffsets(_Commit):
    """TxnOffsetCommit; generation -1 and member "" from a producer that sends no member.

    `adds`: the partition of our log is to be added to the transaction first (v5, KIP-890).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteTransaction:
    """The marker of a transaction, for our partition of `__consumer_offsets`, not for one group.

    `transaction_version` decides how the marker's producer epoch is checked (KIP-1228).
    """

    marker: TransactionMarker
    transaction_version: int

    def refuse(self, error_code: ErrorCode) -> ErrorCode:
        """Return an error of WriteTxnMarkers, which has no coordinator errors."""
        is_elsewhere = error_code in {
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
        }
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_elsewhere else error_code


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets(_PartitionsRequest):
    """OffsetDelete. A partition that a member subscribes to is GROUP_SUBSCRIBED_TO_TOPIC."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup(_CodeRequest):
    """DeleteGroups, for one group."""


Request = Join | Sync | Heartbeat | Leave | CommitOffsets | DeleteOffsets | DeleteGroup
TransactionalRequest = CommitTransactionalOffsets | CompleteTransaction
Result = JoinResult | SyncResult | LeaveResult | CommitResult | ErrorCode
