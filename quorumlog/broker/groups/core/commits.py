"""Checks shared by group requests: group names, and commits with or without a transaction."""

from collections.abc import Mapping
from dataclasses import dataclass

from quorumlog.broker.groups.core.records import NAME_BYTES_MAX, OffsetRecord
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitResult,
    CommitTransactionalOffsets,
)
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import replaced


def is_group_name(group_id: str, *, may_be_empty: bool) -> bool:
    """Whether a group may have this name: it must fit into a record."""
    return len(group_id.encode()) <= NAME_BYTES_MAX and (bool(group_id) or may_be_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedCommit:
    """The records of a commit, and the outcome of each partition once they are committed."""

    records: tuple[OffsetRecord, ...]
    outcomes: Mapping[TopicPartition, ErrorCode]

    def result(self, written: ErrorCode = ErrorCode.NONE) -> CommitResult:
        """Return the response. `written`: the result of the write of the records."""
        partitions = {where: code or written for where, code in self.outcomes.items()}
        return CommitResult(error_code=ErrorCode.NONE, partitions=partitions)


def decide_commit(
    request: CommitOffsets | CommitTransactionalOffsets, settings: BrokerSettings, now_ms: int
) -> DecidedCommit:
    """Check each partition of a commit that the group accepts; return records and outcomes."""
    group_id = request.group_id
    longest = min(settings.offset_metadata_max_bytes, NAME_BYTES_MAX)
    outcomes = dict.fromkeys(request.offsets, ErrorCode.NONE)
    records: list[OffsetRecord] = []
    for where, offset in request.offsets.items():
        if len(offset.metadata.encode()) > longest:
            outcomes[where] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        committed = replaced(offset, commit_timestamp_ms=now_ms)
        records.append(OffsetRecord(group_id=group_id, topic_partition=where, committed=committed))
    return DecidedCommit(records=tuple(records), outcomes=outcomes)


def stranger_refusal(generation_id: int, *, has_offsets: bool) -> ErrorCode:
    """Return why a commit to a group without members or a generation is refused, or NONE.

    A client that is no member may commit. `has_offsets`: the group has offsets of such a client.
    """
    if generation_id < 0:
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_MEMBER_ID if has_offsets else ErrorCode.ILLEGAL_GENERATION
