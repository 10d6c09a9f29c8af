"""The simulated host of a coordinator performs the effects of its shard as a broker does."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.broker.coordination.core import effects, events
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log.appends import Appends
from quorumlog.chaos.simulation.worlds.brokers.shard_host import ShardHost
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch, iterate_headers
from quorumlog.wire.codec.transaction_markers import TransactionMarker

AT = TopicPartition("__consumer_offsets", 0)
PRODUCER, EPOCH = 5, 3


class Writing:
    """A shard that writes one marker when it begins to lead; `ended` is what it hears of that."""

    next_deadline_ms = None

    def __init__(self, transaction_version: int) -> None:
        self.transaction_version = transaction_version
        self.ended: list[events.AppendEnded] = []

    def step(self, _now_ms: int, event: object) -> list[effects.Effect]:
        if isinstance(event, events.AppendEnded):
            self.ended.append(event)
            return []
        marker = TransactionMarker(PRODUCER, EPOCH, coordinator_epoch=0, commits=True)
        version = self.transaction_version
        return [effects.AppendMarker(append_id=1, marker=marker, transaction_version=version)]


def open_transaction() -> ProducerStates:
    batch = encode_batch(
        [Record(0, 1, None, b"v")],
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
        base_sequence=0,
        is_transactional=True,
    )
    producers = ProducerStates()
    [(_, header)] = iterate_headers(batch)
    producers.record(header, base_offset=0, wall_ms=0)
    return producers


def leading_broker() -> Any:
    """Return a node that leads AT, where the producer's transaction is open."""

    def soon(_after_us: int, action: Callable[..., None], *arguments: object) -> None:
        action(*arguments)

    driver = SimpleNamespace(
        producers=open_transaction(),
        partition=SimpleNamespace(
            serving=SimpleNamespace(
                append_refusal=lambda _acks: ErrorCode.NONE, commit_outcome=lambda: ErrorCode.NONE
            ),
            state=SimpleNamespace(high_watermark=2, log_start_offset=0),
        ),
        append_as_leader=lambda *_, **__: SimpleNamespace(
            first_offset=1, last_offset=1, max_timestamp=0
        ),
        is_exchanging=False,
    )
    replicas: Any = SimpleNamespace(drivers={AT: driver}, deadlines=[])
    return SimpleNamespace(
        machine=SimpleNamespace(now_ms=lambda: 0, later=soon),
        appends=Appends(replicas, now_ms=lambda: 0, wall_ms=lambda: 0, arm=lambda _: None),
        take=lambda action, *arguments: action(*arguments),
    )


@pytest.mark.parametrize(
    ("transaction_version", "error_code"),
    [(0, ErrorCode.NONE), (1, ErrorCode.NONE), (2, ErrorCode.INVALID_PRODUCER_EPOCH)],
)
def test_a_marker_is_judged_by_its_version(transaction_version: int, error_code: ErrorCode) -> None:
    # From version 2 on, the marker that ends a transaction has a newer epoch (KIP-1228).
    shard: Any = Writing(transaction_version)
    host: ShardHost[Any] = ShardHost(leading_broker(), AT, lambda: shard, lambda *_: None)
    host.became_leader(AT, Epoch(0))
    assert [ended.error_code for ended in shard.ended] == [error_code]
