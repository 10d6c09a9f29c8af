"""Brokers that answer clients by one broken rule each: sequences, acks, sessions, ends, headers.

Polite clients do not meet most of these bugs; the raw clients of `wire_rules` do.
"""

from collections.abc import Iterator
from typing import Any, Final

from quorumlog.broker.partitions.core.producer_state import Check, ProducerStates
from quorumlog.broker.partitions.log.offset_lookup import LATEST
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.parts import ChangedResponses, is_from_consumer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Buffer, contents
from quorumlog.wire.codec.messages.fetch import FetchRequest, FetchResponse, PartitionData
from quorumlog.wire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from quorumlog.wire.codec.messages.produce import ProduceRequest, ProduceResponse
from quorumlog.wire.codec.records import (
    BatchHeader,
    Record,
    decode_batches,
    encode_batch,
    iterate_headers,
)

REQUESTS: Final = Mutants("replication")


@REQUESTS.breaks("a batch that leaves a gap in its producer's sequence is appended (KIP-98)")
class _TakesGaps(ProducerStates):
    """Repeated and older batches are judged as ever."""

    def check(self, batch: BatchHeader) -> Check:
        found = super().check(batch)
        producer = self._find(batch.producer_id)
        if producer is None or not producer.batches or found.duplicate_of is not None:
            return found
        is_gap = batch.base_sequence > producer.batches[-1].last_sequence
        if is_gap and found.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return Check(ErrorCode.NONE)
        return found


@REQUESTS.breaks("acks=all is answered before the followers have the batch, while others wait")
class _AnswersEarlyUnderLoad(ChangedResponses):
    """While more than two batches wait for followers, the next one is answered as with acks=1."""

    api_key = ProduceRequest.API_KEY
    _WAITING: Final = 2

    def __init__(self) -> None:
        self._waiting = 0

    def asked(self, request: ProduceRequest) -> ProduceRequest:
        if request.acks == -1:
            if self._waiting > self._WAITING:
                request.acks = 1
            else:
                self._waiting += 1
        return request

    def changed(self, request: ProduceRequest, response: ProduceResponse) -> ProduceResponse:
        if request.acks == -1:
            self._waiting -= 1
        return response


@REQUESTS.breaks("ListOffsets returns the log's end as the latest offset, not the high watermark")
class _LatestIsTheLogEnd(ChangedResponses):
    """It answers a consumer as it answers a debugging replica."""

    api_key = ListOffsetsRequest.API_KEY
    _DEBUGGING: Final = -2

    def asked(self, request: ListOffsetsRequest) -> ListOffsetsRequest:
        timestamps = (one.timestamp for topic in request.topics for one in topic.partitions)
        if request.replica_id == -1 and all(one == LATEST for one in timestamps):
            request.replica_id = self._DEBUGGING
        return request

    def changed(
        self, request: ListOffsetsRequest, response: ListOffsetsResponse
    ) -> ListOffsetsResponse:
        del request
        return response


@REQUESTS.breaks("a fetch session leaves one of its partitions out (KIP-227)")
class _SessionForgetsOnePartition(ChangedResponses):
    """In each session of a consumer, the partition with the least index, unless it has an error."""

    api_key = FetchRequest.API_KEY

    def changed(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        if not is_from_consumer(request) or request.session_epoch <= 0:
            return response
        for topic in response.responses:
            topic.partitions = [
                one for one in topic.partitions if one.partition_index > 0 or one.error_code
            ]
        return response


@REQUESTS.breaks("consumers receive records without their headers")
class _DropsHeaders(ChangedResponses):
    """Only batches whose records have headers change."""

    api_key = FetchRequest.API_KEY

    def changed(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        for topic in response.responses if is_from_consumer(request) else ():
            for partition in topic.partitions:
                partition.records = b"".join(_without_headers(partition))
        return response


def _without_headers(partition: PartitionData) -> Iterator[bytes]:
    records: Any = partition.records or b""
    data = bytes(records) if isinstance(records, Buffer) else b"".join(contents(records))
    end = 0
    batches = zip(iterate_headers(data), decode_batches(data), strict=True)
    for (position, header), (_, batch) in batches:
        end = position + header.size_in_bytes
        if header.is_control or not any(one.headers for one in batch):
            yield data[position:end]
        else:
            yield encoded_again(header, [one._replace(headers=()) for one in batch])
    yield data[end:]


def encoded_again(header: BatchHeader, batch: list[Record]) -> bytes:
    """Return a batch of other records, with the same header otherwise."""
    return encode_batch(
        batch,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        compression=header.compression,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )
