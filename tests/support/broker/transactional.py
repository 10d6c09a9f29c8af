"""Batches of transactions and their markers, for one broker's data path."""

import asyncio

from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.broker.partitions.io.appends import verification_by
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.verified_appends import ClientTransaction
from quorumlog.broker.replicas import Replicas
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import contents
from quorumlog.wire.codec.records import Record, encode_batch, iterate_headers
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.broker.one_broker import AT, fetch_of
from tests.support.broker.scripted_verifier import ScriptedVerifier

PRODUCER = 5
# Markers have the time of the clock, the records of tests an old one.
ONE_SEGMENT = LogSettings(segment_ms=2**62)


def transactional(
    sequence: int, epoch: int = 0, producer_id: int = PRODUCER, *, key: bytes | None = None
) -> bytes:
    return encode_batch(
        [Record(0, 1, key, b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def idempotent(sequence: int, epoch: int = 0, producer_id: int = PRODUCER) -> bytes:
    return encode_batch(
        [Record(0, 1, None, b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def begin_append(
    replicas: Replicas,
    records: bytes,
    verifier: ScriptedVerifier | None,
    *,
    adds: bool = False,
    acks: int = 1,
) -> asyncio.Future[ProduceResult]:
    """Append as a transactional client does; without a verifier no request is sent."""
    future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
    verify = None if verifier is None else verification_by(verifier)
    transaction = ClientTransaction("shop", verify, adds=adds, knows_abortable=True)
    replicas.appends.append(
        AT,
        memoryview(bytearray(records)),
        acks=acks,
        timeout_ms=1000,
        done=future.set_result,
        transaction=transaction,
    )
    return future


async def append_in(
    replicas: Replicas, records: bytes, verifier: ScriptedVerifier | None = None
) -> ProduceResult:
    """Append in a transaction that is open."""
    return await begin_append(replicas, records, verifier or ScriptedVerifier())


def begin_to_end(
    replicas: Replicas,
    *,
    commits: bool = True,
    producer_id: int = PRODUCER,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> asyncio.Future[ProduceResult]:
    """Append a marker."""
    future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
    marker = TransactionMarker(producer_id, epoch, coordinator_epoch, commits)
    replicas.append_marker(AT, marker, done=future.set_result, transaction_version=version)
    return future


def end(replicas: Replicas, *, commits: bool = True, **marker: int) -> ErrorCode:
    """Append a marker that is committed at once; return the outcome."""
    future = begin_to_end(replicas, commits=commits, **marker)
    assert future.done()
    return future.result().error_code


def driver_of(replicas: Replicas) -> PartitionDriver:
    return replicas.drivers[AT]


async def read_committed(
    replicas: Replicas, offset: int = 0
) -> tuple[list[int], list[AbortedTransaction]]:
    """Return the base offsets that a consumer receives, and those that it must filter out."""
    spec = fetch_of(offset, is_read_committed=True, max_wait_ms=0)
    answers = replicas.fetches.fetch(spec, list)
    answered = await answers if isinstance(answers, asyncio.Future) else answers
    found = answered[0]
    assert found.error_code is ErrorCode.NONE
    data = b"".join(contents(found.records))
    offsets = [header.base_offset for _, header in iterate_headers(data)]
    return offsets, list(found.aborted or ())
