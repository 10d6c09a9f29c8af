"""Produce (API key 0): appends each partition's batch; answers when all have an outcome."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from quorumlog.broker.partitions.core.admission import (
    ZSTD_SINCE,
    is_transactional,
    is_zstd_too_early,
)
from quorumlog.broker.partitions.core.data_path import ProduceResult, RunDone
from quorumlog.broker.partitions.io.appends import verification_by
from quorumlog.broker.partitions.log.appends import WITHOUT_TRANSACTIONAL_ID
from quorumlog.broker.partitions.log.verified_appends import ClientTransaction
from quorumlog.broker.responses.cluster_view import leader_hints
from quorumlog.broker.server.api import BrokerContext, Deliver, Disconnect, Reply, RunReply, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.message import Buffer, contents
from quorumlog.wire.codec.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from quorumlog.wire.codec.produce_template import ACKS, ProduceTemplate, TemplateMatch
from quorumlog.wire.codec.schemas import RequestHeader, encode_response
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS

TOPIC_IDS_SINCE: Final = 13
LEADER_HINTS_SINCE: Final = 10  # KIP-951
ABORTABLE_SINCE: Final = 11  # KIP-1050
IMPLICIT_ADDS_SINCE: Final = 12  # KIP-890: clients with transaction.version 2 add no partition
SLICE_S: Final = 0.02
_INTERNAL: Final = ProduceResult(
    ErrorCode.INVALID_TOPIC_EXCEPTION, error_message="only brokers write to this topic"
)
_ZSTD_TOO_EARLY: Final = ProduceResult(
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    error_message=f"zstd is for version {ZSTD_SINCE} of Produce and later",
)


class _Answer:
    """The response as it fills; `waiting`: the number of partitions without an outcome."""

    __slots__ = ("context", "future", "hinted", "response", "version", "waiting")

    def __init__(self, context: BrokerContext, version: int) -> None:
        self.context = context
        self.version = version
        self.response = ProduceResponse()
        self.waiting = 0
        self.hinted: set[TopicPartition] = set()
        self.future: asyncio.Future[ProduceResponse] | None = None

    def take(
        self, at: TopicPartition, slot: PartitionProduceResponse, result: ProduceResult
    ) -> None:
        """Write one partition's outcome; after the last, complete the response."""
        slot.error_code = result.error_code
        slot.base_offset = result.base_offset
        slot.log_append_time_ms = result.log_append_time_ms
        slot.log_start_offset = result.log_start_offset
        slot.error_message = result.error_message
        if result.record_errors:
            slot.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in result.record_errors
            ]
        if result.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._hint(at, slot)
        self.waiting -= 1
        if self.waiting == 0 and self.future is not None and not self.future.done():
            self.future.set_result(self.finish())

    def _hint(self, at: TopicPartition, slot: PartitionProduceResponse) -> None:
        context = self.context
        partition = context.image.partition(at)
        if self.version < LEADER_HINTS_SINCE or partition is None:
            return
        if partition.leader_id == context.broker_id:
            return  # it resigns, before this image is replaced by one with the next leader
        slot.current_leader = LeaderIdAndEpoch(
            leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
        )
        self.hinted.add(at)

    def finish(self) -> ProduceResponse:
        """Add the endpoints of the hinted leaders; return the response."""
        if self.hinted:
            self.response.node_endpoints = [
                NodeEndpoint(node_id=hint.broker_id, host=host, port=port, rack=hint.rack)
                for hint, (host, port) in leader_hints(self.context, self.hinted)
            ]
        return self.response


def _refusal(request: ProduceRequest) -> ProduceResult | None:
    """Return the refusal of the whole request; None: each batch is judged on its own."""
    if request.transactional_id is None and any(
        is_transactional(_records(data))
        for topic in request.topic_data
        for data in topic.partition_data
    ):
        return WITHOUT_TRANSACTIONAL_ID
    if request.acks not in ACKS:
        return ProduceResult(ErrorCode.INVALID_REQUIRED_ACKS)
    return None


def _transaction(context: BrokerContext, version: int, transactional_id: str) -> ClientTransaction:
    """Return the request's transaction; its verifier checks or adds partitions (KIP-890)."""
    adds = version >= IMPLICIT_ADDS_SINCE
    is_asked = adds or context.settings.transaction_partition_verification_enable
    return ClientTransaction(
        transactional_id=transactional_id,
        verify=verification_by(context.verifier) if is_asked else None,
        adds=adds,
        knows_abortable=version >= ABORTABLE_SINCE,
    )


@dataclass(slots=True)
class _Run:
    """Requests of one run whose batches are in the log; they get their outcomes in order.

    requests: the correlation id and the base offset of each, without an outcome yet.
    numbers: append time and log start, as in the responses.
    """

    context: BrokerContext
    template: ProduceTemplate
    at: TopicPartition
    requests: Iterator[tuple[int, int]]
    numbers: tuple[int, int]

    def wait(self, until_done: Callable[[RunDone], None], deliver: Deliver) -> None:
        """Deliver the responses with the outcomes."""
        until_done(lambda error_code, count: deliver(self.responses(error_code, count), count))

    def responses(self, error_code: ErrorCode, count: int) -> list[Buffer]:
        """Return the responses to the next `count` requests; none with acks=0."""
        correlation_ids, base_offsets = zip(*islice(self.requests, count), strict=True)
        if not error_code:
            return self.template.responses(correlation_ids, base_offsets, *self.numbers)
        return [part for each in correlation_ids for part in self._refusal(error_code, each)]

    def _refusal(self, error_code: ErrorCode, correlation_id: int) -> list[Buffer]:
        template = self.template
        answer = _Answer(self.context, template.header.api_version)
        slot = PartitionProduceResponse(index=self.at.partition)
        topic = TopicProduceResponse(
            name=template.at.topic, topic_id=template.topic_id, partition_responses=[slot]
        )
        answer.response.responses.append(topic)
        answer.take(self.at, slot, ProduceResult(error_code))
        header = template.header._replace(correlation_id=correlation_id)
        return encode_response(header, answer.finish())


def handle_run(
    context: BrokerContext,
    template: ProduceTemplate,
    requests: Sequence[TemplateMatch],
    *,
    may_continue: Callable[[], bool],
) -> RunReply | None:
    """Append the batches of requests for one partition together: see HandleRun."""
    at = template.at
    if not at.topic:
        name = context.image.topic_names.get(TopicId(template.topic_id))
        if name is None:
            return None
        at = TopicPartition(name, at.partition)
    transaction = None
    if template.transactional_id is not None:
        version = template.header.api_version
        transaction = _transaction(context, version, template.transactional_id)
    correlation_ids, batches, _ = zip(*requests, strict=True)
    appended = context.replicas.appends.append_run(
        at,
        batches,
        acks=template.acks,
        timeout_ms=template.timeout_ms,
        transaction=transaction,
        may_continue=may_continue,
    )
    if appended is None:
        return None
    base_offsets, append_time_ms, log_start_offset, outcome = appended
    numbers, count = (append_time_ms, log_start_offset), len(base_offsets)
    if outcome is ErrorCode.NONE:
        return count, template.responses(correlation_ids, base_offsets, *numbers)
    run = _Run(context, template, at, zip(correlation_ids, base_offsets, strict=False), numbers)
    if isinstance(outcome, ErrorCode):
        return count, run.responses(outcome, count)
    return count, partial(run.wait, outcome)


# librdkafka and others choose features by the version 0 (KAFKA-18659).
@answers(ProduceRequest, 3, 13, advertised_min_version=0, handle_run=handle_run)
def handle(context: BrokerContext, header: RequestHeader, request: ProduceRequest) -> Reply:
    """Append every batch; answer now, or when the last acks=all is committed or timed out.

    A request that takes longer than SLICE_S continues in slices: the check of every record takes
    time in proportion to the request, and other requests need the event loop.
    """
    answer = _Answer(context, header.api_version)
    steps = _append_each(context, header, request, answer)
    if _is_done(steps):
        return _conclude(request, answer)
    return _resume(steps, request, answer)


def _append_each(
    context: BrokerContext, header: RequestHeader, request: ProduceRequest, answer: _Answer
) -> Iterator[None]:
    """Append batch after batch, and yield between two."""
    is_first = True
    refusal = _refusal(request)
    transaction = None
    if request.transactional_id is not None:
        transaction = _transaction(context, header.api_version, request.transactional_id)
    topic_names = context.image.topic_names
    # Count all partitions before the first outcome can come.
    answer.waiting = sum(len(topic.partition_data) for topic in request.topic_data)
    for topic in request.topic_data:
        name: str | None = topic.name
        if header.api_version >= TOPIC_IDS_SINCE:
            name = topic_names.get(TopicId(topic.topic_id))
        topic_response = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        answer.response.responses.append(topic_response)
        for data in topic.partition_data:
            if not is_first:
                yield
            is_first = False
            slot = PartitionProduceResponse(index=data.index)
            topic_response.partition_responses.append(slot)
            at = TopicPartition(name or "", data.index)
            done = partial(answer.take, at, slot)
            if refusal is not None:
                done(refusal)
            elif name is None:
                done(ProduceResult(ErrorCode.UNKNOWN_TOPIC_ID))
            elif name in INTERNAL_TOPICS:  # an unreadable record would stop its coordinator
                done(_INTERNAL)
            elif is_zstd_too_early(records := _records(data), header.api_version):
                done(_ZSTD_TOO_EARLY)
            else:
                context.replicas.appends.append(
                    at,
                    records,
                    acks=request.acks,
                    timeout_ms=request.timeout_ms,
                    done=done,
                    transaction=transaction,
                )


def _is_done(steps: Iterator[None]) -> bool:
    """Run the steps that begin within SLICE_S; return whether all are done."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + SLICE_S
    for _ in steps:  # noqa: SIM110 - `all` would cost a second generator
        if loop.time() >= until_s:
            return False
    return True


async def _resume(
    steps: Iterator[None], request: ProduceRequest, answer: _Answer
) -> ProduceResponse | None:
    while True:
        await asyncio.sleep(0)
        if _is_done(steps):
            break
    outcome = _conclude(request, answer)
    return await outcome if isinstance(outcome, asyncio.Future) else outcome


def _conclude(
    request: ProduceRequest, answer: _Answer
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Return the response, or a future of it; None for a request with acks=0."""
    if request.acks == 0:
        _disconnect_if_refused(answer.response)
        return None
    if answer.waiting == 0:
        return answer.finish()
    answer.future = asyncio.get_running_loop().create_future()
    return answer.future


def _disconnect_if_refused(response: ProduceResponse) -> None:
    """Close the connection if an acks=0 batch is refused: its producer refreshes its metadata."""
    for topic in response.responses:
        for slot in topic.partition_responses:
            if slot.error_code != ErrorCode.NONE:
                error_code = ErrorCode(slot.error_code).name
                raise Disconnect(f"acks=0, {topic.name}-{slot.index}: {error_code}")


def _records(data: PartitionProduceData) -> Buffer:
    records = data.records
    return records if isinstance(records, Buffer) else b"".join(contents(records or ()))
