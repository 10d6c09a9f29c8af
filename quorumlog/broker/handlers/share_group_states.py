"""The states of share partitions (83-87): no broker here is a share coordinator. Source: KIP-932.

Brokers send these requests to the share coordinator. Kafka with `share.version` 0 does not refuse
them: the topic of the states does not exist, so that each partition has the wrong coordinator.
"""

from typing import Any

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from quorumlog.wire.codec.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
)
from quorumlog.wire.codec.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
)
from quorumlog.wire.codec.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
)
from quorumlog.wire.codec.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)
from quorumlog.wire.codec.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)


def _results(request: Any, result: type[Any], partition_result: type[Any], verb: str) -> list[Any]:
    """Refuse each partition once; a request without a group has no results, as in Kafka."""
    error_message = f"Unable to {verb}: This is not the correct coordinator."
    refusal = {"error_code": ErrorCode.NOT_COORDINATOR, "error_message": error_message}
    indexes: dict[bytes, dict[int, None]] = {}
    for topic in request.topics if request.group_id else ():
        for one in topic.partitions:
            indexes.setdefault(topic.topic_id, {})[one.partition] = None
    return [
        result(
            topic_id=topic_id,
            partitions=[partition_result(partition=index, **refusal) for index in of_topic],
        )
        for topic_id, of_topic in indexes.items()
    ]


@answers(InitializeShareGroupStateRequest, 0, 0)
def handle_initialize(
    _context: BrokerContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    """Refuse to initialize the state of each partition."""
    shape = initialize_share_group_state.PartitionResult
    results = _results(request, InitializeStateResult, shape, "initialize share group state")
    return InitializeShareGroupStateResponse(results=results)


@answers(ReadShareGroupStateRequest, 0, 0)
def handle_read(
    _context: BrokerContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    """Refuse to read the state of each partition."""
    shape = read_share_group_state.PartitionResult
    results = _results(request, ReadStateResult, shape, "read share group state")
    return ReadShareGroupStateResponse(results=results)


@answers(WriteShareGroupStateRequest, 0, 1)
def handle_write(
    _context: BrokerContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    """Refuse to write the state of each partition."""
    shape = write_share_group_state.PartitionResult
    results = _results(request, WriteStateResult, shape, "write share group state")
    return WriteShareGroupStateResponse(results=results)


@answers(DeleteShareGroupStateRequest, 0, 0)
def handle_delete(
    _context: BrokerContext, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    """Refuse to delete the state of each partition."""
    shape = delete_share_group_state.PartitionResult
    results = _results(request, DeleteStateResult, shape, "delete share group state")
    return DeleteShareGroupStateResponse(results=results)


@answers(ReadShareGroupStateSummaryRequest, 0, 1)
def handle_read_summary(
    _context: BrokerContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    """Refuse to summarize the state of each partition."""
    shape = read_share_group_state_summary.PartitionResult
    results = _results(request, ReadStateSummaryResult, shape, "read share group state summary")
    return ReadShareGroupStateSummaryResponse(results=results)
