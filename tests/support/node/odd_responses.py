"""A node with responses that a broker may send, and that some libraries misread.

The beginning of the client id selects them:

  hidden      the first two responses to OffsetFetch: UNKNOWN_TOPIC_OR_PARTITION for each partition;
  old-format  each response to ListOffsets: UNSUPPORTED_FOR_MESSAGE_FORMAT for each partition;
  corrupt     the first four records of partition 1: a byte of the last one is wrong;
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from quorumlog.broker.server import connection
from quorumlog.node.main import main
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Buffer, Response
from quorumlog.wire.codec.messages.fetch import FetchResponse
from quorumlog.wire.codec.messages.list_offsets import ListOffsetsResponse
from quorumlog.wire.codec.messages.offset_fetch import OffsetFetchResponse
from quorumlog.wire.codec.schemas import RequestHeader, encode_response

HIDDEN: Final = 2
CORRUPT: Final = 4
_seen: Final[Counter[str]] = Counter()


def altered(header: RequestHeader, response: Response) -> list[Buffer]:
    """Encode a response, changed for some clients."""
    client = header.client_id or ""
    if isinstance(response, OffsetFetchResponse) and client.startswith("hidden"):
        _seen[client] += 1
        if _seen[client] <= HIDDEN:
            topics = [*response.topics, *(topic for one in response.groups for topic in one.topics)]
            for partition in (one for topic in topics for one in topic.partitions):
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                partition.committed_offset = -1
    if isinstance(response, ListOffsetsResponse) and client.startswith("old-format"):
        for asked in (one for topic in response.topics for one in topic.partitions):
            asked.error_code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
            asked.offset = asked.timestamp = -1
    if isinstance(response, FetchResponse) and client.startswith("corrupt"):
        for fetched in (one for topic in response.responses for one in topic.partitions):
            if fetched.partition_index == 1 and fetched.records and _seen[client] < CORRUPT:
                _seen[client] += 1
                fetched.records = _corrupt(fetched.records)
    return encode_response(header, response)


def _corrupt(records: Buffer | Sequence[Buffer]) -> bytes:
    chunks: Sequence[Any] = (
        [records] if isinstance(records, bytes | bytearray | memoryview) else records
    )
    joined = bytearray(b"".join(chunks))
    joined[-1] ^= 1
    return bytes(joined)


if __name__ == "__main__":
    connection.encode_response = altered
    sys.exit(main(sys.argv[1:]))
