"""A node with responses that a broker may send, and that some libraries misread.

The beginning of the client id selects them:

  hidden         the first two responses to OffsetFetch: UNKNOWN_TOPIC_OR_PARTITION everywhere;
  old-format     each response to ListOffsets: UNSUPPORTED_FOR_MESSAGE_FORMAT everywhere;
  corrupt        the first four fetches of partition 1 with records: their last byte is wrong;
  no-controller  no node is the controller, by the metadata;
  refused        no node is the controller, by the responses to changes of topics.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from quorumlog.broker.server import connection
from quorumlog.node.main import main
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Response, Sendable
from quorumlog.wire.codec.messages.create_topics import CreateTopicsResponse
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsResponse
from quorumlog.wire.codec.messages.fetch import FetchResponse
from quorumlog.wire.codec.messages.list_offsets import ListOffsetsResponse
from quorumlog.wire.codec.messages.metadata import MetadataResponse
from quorumlog.wire.codec.messages.offset_fetch import OffsetFetchResponse
from quorumlog.wire.codec.schemas import RequestHeader, message_of, response_to_send

HIDDEN: Final = 2
CORRUPT: Final = 4
_seen: Final[Counter[str]] = Counter()


def _hide(client: str, response: OffsetFetchResponse) -> None:
    _seen[client] += 1
    topics: list[Any] = [*response.topics]
    topics += [topic for one in response.groups for topic in one.topics]
    for partition in (one for topic in topics for one in topic.partitions):
        if _seen[client] <= HIDDEN:
            partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partition.committed_offset = -1


def _refuse_lookups(_: str, response: ListOffsetsResponse) -> None:
    for partition in (one for topic in response.topics for one in topic.partitions):
        partition.error_code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        partition.offset = partition.timestamp = -1


def _corrupt(client: str, response: FetchResponse) -> None:
    for partition in (one for topic in response.responses for one in topic.partitions):
        if partition.partition_index == 1 and partition.records and _seen[client] < CORRUPT:
            _seen[client] += 1
            records = partition.records
            is_one = isinstance(records, bytes | bytearray | memoryview)
            chunks: Sequence[Any] = [records] if is_one else records
            joined = bytearray(b"".join(chunks))
            joined[-1] ^= 1
            partition.records = bytes(joined)


def _without_a_controller(_: str, response: MetadataResponse) -> None:
    response.controller_id = -1


def _refuse_creation(_: str, response: CreateTopicsResponse) -> None:
    for topic in response.topics:
        topic.error_code = ErrorCode.NOT_CONTROLLER


def _refuse_deletion(_: str, response: DeleteTopicsResponse) -> None:
    for topic in response.responses:
        topic.error_code = ErrorCode.NOT_CONTROLLER


_CHANGES: Final[Mapping[tuple[str, type[Response]], Callable[[str, Any], None]]] = {
    ("hidden", OffsetFetchResponse): _hide,
    ("old-format", ListOffsetsResponse): _refuse_lookups,
    ("corrupt", FetchResponse): _corrupt,
    ("no-controller", MetadataResponse): _without_a_controller,
    ("refused", CreateTopicsResponse): _refuse_creation,
    ("refused", DeleteTopicsResponse): _refuse_deletion,
}


def changed(header: RequestHeader, response: Response) -> list[Sendable]:
    """Encode a response, changed for some clients."""
    client = header.client_id or ""
    response = message_of(header, response)
    for (beginning, kind), change in _CHANGES.items():
        if client.startswith(beginning) and isinstance(response, kind):
            change(client, response)
    return response_to_send(header, response)


if __name__ == "__main__":
    connection.response_to_send = changed  # type: ignore[attr-defined]
    sys.exit(main(sys.argv[1:]))
