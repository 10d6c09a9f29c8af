"""What requests about groups have in common: names, and offsets with or without a transaction."""

from collections.abc import Mapping
from dataclasses import replace

from quorumlog.broker.groups.core.records import NAME_BYTES_MAX, OffsetRecord
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


def is_group_name(group_id: str, *, may_be_empty: bool) -> bool:
    """Whether a group may have this name: it must fit into a record."""
    return len(group_id.encode()) <= NAME_BYTES_MAX and (bool(group_id) or may_be_empty)


def offset_records(
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    settings: BrokerSettings,
    now_ms: int,
) -> tuple[dict[TopicPartition, ErrorCode], list[OffsetRecord]]:
    """Return the outcome for each partition, and the records of those that are NONE."""
    longest = min(settings.offset_metadata_max_bytes, NAME_BYTES_MAX)
    outcomes = dict.fromkeys(offsets, ErrorCode.NONE)
    records: list[OffsetRecord] = []
    for where, offset in offsets.items():
        if len(offset.metadata.encode()) > longest:
            outcomes[where] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        committed = replace(offset, commit_timestamp_ms=now_ms)
        records.append(OffsetRecord(group_id=group_id, topic_partition=where, committed=committed))
    return outcomes, records


def stranger_refusal(generation_id: int, *, has_offsets: bool) -> ErrorCode:
    """Return why a commit to a group without members or a past is refused, or NONE.

    A client that is no member may commit. `has_offsets`: the group has some from such a client.
    """
    if generation_id < 0:
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_MEMBER_ID if has_offsets else ErrorCode.ILLEGAL_GENERATION
