"""Requests and answers of a coordinator: as an oracle reads them, and by KIP-98, 360 and 890."""

from typing import Any, Final

from quorumlog.broker.transactions.core.records import TransactionMetadata
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    AddPartitions,
    EndTransaction,
    InitProducerId,
)
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.chaos.simulation.oracles.exchanges import Exchange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from quorumlog.wire.codec.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

FINE: Final = ErrorCode.NONE
FENCED: Final = ErrorCode.PRODUCER_FENCED
STRANGER: Final = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WAIT: Final = ErrorCode.CONCURRENT_TRANSACTIONS
WRONG: Final = ErrorCode.INVALID_TXN_STATE
LAST_EPOCH: Final = 32_766  # of a producer; one more is for fencing it
_COMPLETE: Final = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
Codes = set[ErrorCode]


def permitted(request: Any, state: TransactionMetadata | None, *, is_busy: bool) -> Codes:
    """Return the permitted error codes for a request, by the committed state of its id."""
    is_init = isinstance(request, InitProducerId)
    if state is None:
        return {WAIT if is_busy else FINE} if is_init else {STRANGER}
    producer_id, epoch = request.expected if is_init else request.producer
    refused: Codes = set()
    if producer_id != state.producer_id:
        refused = {FENCED if is_init else STRANGER}
    elif epoch != state.producer_epoch:
        refused = {FENCED}
    match request:
        case AddPartitions(verify_only=True):
            codes = refused or _verified(request, state)
        case EndTransaction(client_transaction_version=0):
            codes = refused or ({WAIT} if is_busy else _ended(request, state))
        case _ if is_busy:
            codes = {WAIT}
        case InitProducerId():
            codes = _initialized(request, state, refused)
        case EndTransaction():
            codes = _repeated(request, state) or refused or _ended(request, state)
        case _:
            codes = refused or {FINE}
    return codes


def _verified(request: AddPartitions, state: TransactionMetadata) -> Codes:
    is_open = state.state is TransactionState.ONGOING
    is_added = is_open and request.partitions <= {*state.partitions}
    is_decided = state.state in PREPARED
    return {WAIT if is_decided else FINE if is_added else ErrorCode.TRANSACTION_ABORTABLE}


def _initialized(request: InitProducerId, state: TransactionMetadata, refused: Codes) -> Codes:
    """No record has the epoch that a producer may repeat (KIP-360): the oracle checks that."""
    is_open, expected = state.state is TransactionState.ONGOING, request.expected
    if expected == NO_PRODUCER or not refused:
        return {WAIT if is_open else FINE}
    may_repeat = expected == (state.producer_id, state.producer_epoch - 1)
    may_repeat |= expected.producer_id != state.producer_id and expected.epoch == LAST_EPOCH
    return refused | {FINE} if may_repeat and not is_open else refused


def _repeated(request: EndTransaction, state: TransactionMetadata) -> Codes:
    """Return the codes if a request names the epoch of the last transaction (KIP-890), or none."""
    retries = [(state.producer_id, state.producer_epoch - 1)]
    if state.producer_epoch == 0:
        retries = [(state.previous_producer_id, LAST_EPOCH)]
    has_bumped = state.client_transaction_version == 2 and state.state in _COMPLETE.values()
    if not has_bumped or request.producer not in retries:
        return set()
    is_same = state.state is _COMPLETE[request.commit]
    return {FINE if is_same else FENCED if request.commit else WRONG}


def _ended(request: EndTransaction, state: TransactionMetadata) -> Codes:
    is_same = state.state is _COMPLETE[request.commit]
    is_granted = not request.commit if request.client_transaction_version == 2 else is_same
    return {FINE if is_granted or state.state is TransactionState.ONGOING else WRONG}


def exchange_of(request: Any, client_id: str) -> Exchange:
    """Return a request as a broker receives it."""
    values: dict[str, Any] = {"transactional_id": request.transactional_id}
    names = request.expected if isinstance(request, InitProducerId) else request.producer
    values |= {"producer_id": names.producer_id, "producer_epoch": names.epoch}
    message: Any
    match request:
        case InitProducerId():
            message = InitProducerIdRequest(**values)
        case EndTransaction():
            message = EndTxnRequest(**values, committed=request.commit)
        case _:
            transaction = AddPartitionsToTxnTransaction(**values, verify_only=request.verify_only)
            message = AddPartitionsToTxnRequest(transactions=[transaction])
    return Exchange(1, RequestHeader(message.API_KEY, request.api_version, 1, client_id), message)


def response_of(request: Any, result: Any) -> Any:
    """Return a result as a broker sends it."""
    if not isinstance(request, AddPartitions):
        made = InitProducerIdResponse if isinstance(request, InitProducerId) else EndTxnResponse
        producer_id, epoch = result.producer
        return made(error_code=result.error_code, producer_id=producer_id, producer_epoch=epoch)
    topics = [
        AddPartitionsToTxnTopicResult(
            name=at.topic,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=at.partition, partition_error_code=code
                )
            ],
        )
        for at, code in result.partitions.items()
    ]
    answer = AddPartitionsToTxnResult(
        transactional_id=request.transactional_id, topic_results=topics
    )
    return AddPartitionsToTxnResponse(results_by_transaction=[answer])
