"""Checks of kafka-python's internals: errors that the library (3.0) drops become errors of calls.

There are no public hooks. docs/clients.md describes each fault.
"""

from typing import Any, Final

from kafka.errors import UnknownTopicOrPartitionError, UnsupportedForMessageFormatError
from kafka.net.inet import KafkaNetSocket

from quorumlog.wire.codec.error_codes import ErrorCode

_connect: Final = KafkaNetSocket.sock_connect


async def _connect_or_close(factory: Any, net: Any, sock: Any, *to: Any, **limits: Any) -> Any:
    try:
        return await _connect(factory, net, sock, *to, **limits)
    except BaseException:
        sock.close()
        raise


def close_refused_sockets() -> None:
    """Let the library close the socket of a refused connection: it leaves that to the collector.

    Clients of a killed node would hold one for each attempt.
    """
    KafkaNetSocket.sock_connect = _connect_or_close


def check_responses(consumer: Any) -> None:
    """Let errors of single partitions raise that the library leaves out of its results.

    1. OffsetFetch, UNKNOWN_TOPIC_OR_PARTITION: the library returns "nothing is committed".
    2. ListOffsets, UNSUPPORTED_FOR_MESSAGE_FORMAT: the result lacks the partition.
    """
    coordinator, fetcher = consumer._coordinator, consumer._fetcher  # noqa: SLF001 - no public hook
    if coordinator is not None:
        fetched = coordinator._handle_offset_fetch_response  # noqa: SLF001 - as above

        def offset_fetch(response: Any) -> Any:
            is_new = response.API_VERSION >= 8
            for topic in response.groups[0].topics if is_new else response.topics:
                for one in topic.partitions:
                    if one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise UnknownTopicOrPartitionError(f"{topic.name}-{one.partition_index}")
            return fetched(response)

        coordinator._handle_offset_fetch_response = offset_fetch  # noqa: SLF001 - as above
    listed = fetcher._handle_list_offsets_response  # noqa: SLF001 - as above

    def list_offsets(response: Any) -> Any:
        for topic in response.topics:
            for one in topic.partitions:
                if one.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                    raise UnsupportedForMessageFormatError(f"{topic.name}-{one.partition_index}")
        return listed(response)

    fetcher._handle_list_offsets_response = list_offsets  # noqa: SLF001 - as above


def drop_fetched(consumer: Any) -> None:
    """Drop the fetched records of the partition in turn, after an error of a poll.

    After a corrupt batch their iterator has ended, and the library's next poll would not return.
    No position has moved past a record that was not returned, so they are fetched again.
    """
    records = consumer._fetcher._next_partition_records  # noqa: SLF001 - no public call
    if records is not None:
        records.drain()
