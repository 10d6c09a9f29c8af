"""Requests of producers and consumers, each sound, wrong in a field or two, or nonsense.

Sound values come from the responses: producer ids and epochs, sequences, members of groups.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Message, Struct
from quorumlog.wire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from quorumlog.wire.codec.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from quorumlog.wire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from quorumlog.wire.codec.messages.describe_producers import DescribeProducersRequest
from quorumlog.wire.codec.messages.describe_transactions import DescribeTransactionsRequest
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from quorumlog.wire.codec.messages.fetch import FetchRequest
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from quorumlog.wire.codec.messages.list_offsets import ListOffsetsRequest
from quorumlog.wire.codec.messages.list_transactions import ListTransactionsRequest
from quorumlog.wire.codec.messages.offset_commit import OffsetCommitRequest
from quorumlog.wire.codec.messages.offset_fetch import OffsetFetchRequest
from quorumlog.wire.codec.messages.produce import ProduceRequest, ProduceResponse
from quorumlog.wire.codec.messages.txn_offset_commit import TxnOffsetCommitRequest
from quorumlog.wire.codec.messages.write_txn_markers import WriteTxnMarkersRequest
from quorumlog.wire.codec.records import (
    CONTROL_BIT,
    HEADER_BYTES,
    Record,
    encode_batch,
    read_header,
    sealed,
)
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support.wire.records_oracle import random_message

# How often each is drawn: those that change something are drawn more often.
WEIGHTS: Final[dict[type[Any], int]] = {
    InitProducerIdRequest: 3,
    FindCoordinatorRequest: 1,
    AddPartitionsToTxnRequest: 4,
    AddOffsetsToTxnRequest: 2,
    TxnOffsetCommitRequest: 3,
    EndTxnRequest: 3,
    WriteTxnMarkersRequest: 2,
    DescribeTransactionsRequest: 1,
    ListTransactionsRequest: 1,
    DescribeProducersRequest: 1,
    ProduceRequest: 8,
    FetchRequest: 2,
    ListOffsetsRequest: 1,
    ConsumerGroupHeartbeatRequest: 3,
    ConsumerGroupDescribeRequest: 1,
    OffsetCommitRequest: 2,
    OffsetFetchRequest: 1,
}
LONGEST: Final = "x" * 32_767  # the longest string of the old form
NAMES: Final = ("", ".", "a/b", "nobody", "\N{PILE OF POO}", "nul\0", LONGEST)
INT16: Final = (-32_768, -2, -1, 0, 1, 2, 32_766, 32_767)
INT32: Final = (-(2**31), -2, -1, 0, 1, 2, 2**31 - 2, 2**31 - 1)
INT64: Final = (-(2**63), -2, -1, 0, 1, 2, 2**63 - 2, 2**63 - 1)
EXPRESSIONS: Final = (
    "",
    "t.*",
    "(a+)+$",
    "(((a{100}){100}){100})",
    "(?P<x>",
    "[",
    "*",
    "\\",
    "(?=a)",
    "\\C",
    "(" * 1000 + ")" * 1000,
    "(?i)" + "é?" * 500 + "é" * 500,
    "\\pN{1,1000}",
    "a\0b",
    "x{1001}",
    ".*" * 5000,
)
POOLS: Final[dict[str, tuple[Any, ...]]] = {
    "producer_epoch": INT16,
    "partition": INT32,
    "partition_index": INT32,
    "index": INT32,
    "partition_indexes": INT32,
    "partitions": INT32,
    "coordinator_epoch": INT32,
    "current_leader_epoch": INT32,
    "member_epoch": INT32,
    "generation_id": INT32,
    "generation_id_or_member_epoch": INT32,
    "producer_id": INT64,
    "producer_id_filters": INT64,
    "committed_offset": INT64,
    "fetch_offset": INT64,
    "timestamp": (*INT64, -3, -4, -5, -6),
    "duration_filter": INT64,
    "isolation_level": (0, 1, 2, 127, -1, -128),
    "key_type": (0, 1, 2, 3, 127, -1),
    "transaction_timeout_ms": (-1, 0, 1, 60_000, 900_001, 2**31 - 1, -(2**31)),
    "transaction_version": (0, 1, 2, 3, 127, -1),
    "subscribed_topic_regex": EXPRESSIONS,
    "server_assignor": ("", "uniform", "range", "odd", LONGEST),
    "state_filters": ("", "Ongoing", "Empty", "odd", LONGEST),
    "acks": (-1, 1, 2, -2, 32_767),
    "session_id": INT32,
    "session_epoch": (-1, 0, 1, -2, 2**31 - 1),
    "replica_id": (-1, -2, -3),  # a stranger that follows is another subject
}
TRANSACTIONAL_IDS: Final = ("transactional_id", "transactional_ids", "key", "coordinator_keys")
TOPIC_NAMES: Final = ("name", "topic", "subscribed_topic_names")
MEMBER_EPOCHS: Final = ("member_epoch", "generation_id_or_member_epoch", "generation_id")
PARTITIONS: Final = ("partition", "partition_index", "index", "partition_indexes", "partitions")
SOUND: Final[dict[str, tuple[Any, ...]]] = {
    **dict.fromkeys(PARTITIONS, (0, 1)),
    **dict.fromkeys(("group_id", "group_ids"), ("g", "h")),
    **dict.fromkeys(("isolation_level", "committed_offset", "fetch_offset"), (0, 1)),
    **dict.fromkeys(("max_bytes", "partition_max_bytes"), (10_000,)),
    **dict.fromkeys(("coordinator_epoch", "transaction_version", "session_id"), (0,)),
    **dict.fromkeys(("acks", "current_leader_epoch", "session_epoch"), (-1,)),
    **dict.fromkeys(("replica_id", "timestamp", "committed_leader_epoch"), (-1,)),
    **dict.fromkeys(("min_bytes", "retention_time_ms"), (0,)),
    **dict.fromkeys(("instance_id", "group_instance_id", "server_assignor"), (None,)),
    "duration_filter": (-1,),
    "transaction_timeout_ms": (60_000,),
    "key_type": (1,),
    "committed_metadata": ("", "note", None),
    "state_filters": ("Ongoing",),
}
# Nothing waits for long, whatever else is odd.
ALWAYS: Final[dict[str, tuple[Any, ...]]] = {
    "timeout_ms": (-1, 0, 10, -(2**31)),
    "max_wait_ms": (-1, 0, 1, -(2**31)),
    "rebalance_timeout_ms": (-1, 1000, 1000, 1000),
    "replica_state": (None,),
}


@dataclass
class Known:
    """A transactional id as its last good answer has it."""

    transactional_id: str
    producer_id: int = -1
    producer_epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


class HostileRequests:
    """Draws requests, and learns from their answers.

    `topic_ids`: by name, of topics with two partitions.
    """

    def __init__(self, draw: random.Random, topic_ids: dict[str, bytes]) -> None:
        self._draw: Final = draw
        self._topic_ids: Final = topic_ids
        self._known: Final = [Known(name) for name in ("x", "y", "z")]
        self._member: tuple[str, int] = ("m", 0)
        self._subject = self._known[0]
        self._oddness = 0.0
        self._is_beginning = False
        self._batch: tuple[str, int, int] | None = None  # topic, partition, next sequence

    def next(self) -> tuple[Any, int]:
        """Return a request and its version."""
        draw = self._draw
        [request_class] = draw.choices([*WEIGHTS], [*WEIGHTS.values()])
        handler = HANDLERS[request_class.API_KEY]
        version = draw.randint(handler.min_version, handler.max_version)
        self._subject = draw.choice(self._known)
        self._oddness = draw.choice((0.0, 0.0, 0.05, 0.2, 1.0))
        self._batch = None
        self._is_beginning = request_class is InitProducerIdRequest and draw.random() < 0.7
        request = random_message(draw, request_class, version)
        self._fill(request)
        if isinstance(request, ConsumerGroupHeartbeatRequest) and not request.member_epoch:
            request.topic_partitions = []  # as a member that joins
        return request, version

    def learn(self, request: Any, response: Message) -> None:
        """Record the values that a response gives its client."""
        match response:
            case InitProducerIdResponse() | EndTxnResponse() if response.producer_id >= 0:
                name = request.transactional_id
                for known in self._known:
                    if known.transactional_id == name and not response.error_code:
                        known.producer_id = response.producer_id
                        known.producer_epoch = response.producer_epoch
                        known.sequences.clear()
            case ConsumerGroupHeartbeatResponse() if response.error_code == ErrorCode.NONE:
                self._member = response.member_id or "m", max(response.member_epoch, 0)
            case ProduceResponse() if self._batch is not None:
                topic, index, sequence = self._batch
                parts = [one for of in response.responses for one in of.partition_responses]
                if parts and parts[-1].error_code == ErrorCode.NONE:
                    self._subject.sequences[topic, index] = sequence

    # --- Fields ---

    def _fill(self, struct: Struct, topic: str = "t") -> None:
        draw = self._draw
        if {"name", "topic_id", "topic"} & {*struct.__slots__}:
            topic = draw.choice([*self._topic_ids])
        for name in struct.__slots__:
            value = getattr(struct, name)
            if name == "records":
                value = self._records(topic, getattr(struct, "index", 0))
            elif isinstance(value, list):
                value = [self._value(name, one, topic) for one in value]
            else:
                value = self._value(name, value, topic)
            setattr(struct, name, value)

    def _value(self, name: str, value: Any, topic: str) -> Any:
        if isinstance(value, Struct):
            self._fill(value, topic)
            return value
        plain = name.removeprefix("v3_and_below_")
        if plain in ALWAYS:
            return self._draw.choice(ALWAYS[plain])
        if self._draw.random() >= self._oddness:
            return self._sound(plain, value, topic)
        return self._odd(plain, value)

    def _odd(self, name: str, value: Any) -> Any:
        draw = self._draw
        if name in {"producer_id", "producer_epoch"} and draw.random() < 0.5:
            other = draw.choice(self._known)  # another client's, or one that was fenced
            given = getattr(other, name)
            return given if name == "producer_id" else max(given - draw.choice((0, 1)), -1)
        if name in POOLS:
            return draw.choice(POOLS[name])
        if isinstance(value, str):
            internal = OFFSETS_TOPIC, TRANSACTIONS_TOPIC
            return draw.choice((*NAMES, *internal, *(one.transactional_id for one in self._known)))
        return value

    def _sound(self, name: str, value: Any, topic: str) -> Any:
        subject, (member_id, member_epoch) = self._subject, self._member
        if name in SOUND:
            return self._draw.choice(SOUND[name])
        if value is None:
            return None
        mine: dict[str, Any] = {
            **dict.fromkeys(TRANSACTIONAL_IDS, subject.transactional_id),
            **dict.fromkeys(TOPIC_NAMES, topic),
            **dict.fromkeys(MEMBER_EPOCHS, self._draw.choice((member_epoch, -1))),
            "topic_id": self._topic_ids[topic],
            "member_id": self._draw.choice((member_id, "")),
            "producer_id": -1 if self._is_beginning else subject.producer_id,
            "producer_epoch": -1 if self._is_beginning else subject.producer_epoch,
            "producer_id_filters": subject.producer_id,
            "subscribed_topic_regex": "t.*",
        }
        return mine.get(name, value)

    # --- Batches ---

    def _records(self, topic: str, index: int) -> bytes:
        """Return a batch of the subject, or one that is wrong somewhere."""
        draw, subject = self._draw, self._subject
        sequence = subject.sequences.get((topic, index), 0)
        count = draw.choice((1, 1, 2, 5))
        has_id = subject.producer_id >= 0
        records = [Record(offset, 1, b"k", b"v") for offset in range(count)]
        batch = encode_batch(
            records,
            compression=draw.choice((Compression.NONE, Compression.NONE, Compression.LZ4)),
            producer_id=subject.producer_id if has_id else -1,
            producer_epoch=subject.producer_epoch if has_id else -1,
            base_sequence=sequence if has_id else -1,
            is_transactional=has_id,
        )
        if draw.random() >= self._oddness:
            self._batch = (topic, index, sequence + count)
            return batch
        return self._broken(batch)

    def _broken(self, batch: bytes) -> bytes:
        draw = self._draw
        if draw.random() < 0.2:
            return mutated(draw, batch)
        header = read_header(batch)
        fields = list(header[5:])
        where = draw.randrange(len(fields))
        match where:
            case 0:
                fields[0] ^= draw.choice((CONTROL_BIT, 0x10, 0x08, 0x07, 0x40, -0x8000))
            case 1 | 6 | 7:
                fields[where] = draw.choice(INT32)
            case 5:
                fields[where] = draw.choice(INT16)
            case _:
                fields[where] = draw.choice(INT64)
        return sealed(draw.choice((0, 0, 0, -1, 5)), -1, fields, batch[HEADER_BYTES:])


def mutated(draw: random.Random, data: bytes) -> bytes:
    """Return the bytes with some of them changed, absent or doubled."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if not changed:
            break
        at = draw.randrange(len(changed))
        match draw.randrange(5):
            case 0 | 1:
                changed[at] ^= 1 << draw.randrange(8)
            case 2:
                changed[at : at + 4] = draw.choice(
                    (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0")
                )
            case 3:
                del changed[at : at + draw.choice((1, 2, 40))]
            case _:
                changed[at:at] = changed[at : at + draw.choice((1, 8))]
    return bytes(changed)
