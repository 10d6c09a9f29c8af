"""A load generator of known, small cost: prebuilt batches, one socket per partition leader.

It talks to any Kafka server, so a ratio of two servers taken in one run on one machine means
something. `throughput` keeps a window of requests in flight per partition. `fetches` never waits at
the end of a log. `latencies_ms` is open loop: each request is due at its time, and its latency
counts from then, so a stall is not hidden.
"""

import os
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch, iterate_headers
from quorumlog.wire.codec.schemas import decode_response, encode_request

_PRODUCE_VERSION = 8
_METADATA_VERSION = 5
_FETCH_VERSION = 4
FETCH_BYTES = 1 << 20
_SILENCE_S = 30.0


class Connection:
    """One blocking socket; frames as they come."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(4 * FETCH_BYTES)
        self._begin = self._end = 0  # of the received bytes

    def frames(self) -> list[memoryview]:
        """Read once; return the whole frames, without their length, valid until the next call."""
        view = memoryview(self._buffer)
        if self._begin:
            view[: self._end - self._begin] = view[self._begin : self._end]
            self._begin, self._end = 0, self._end - self._begin
        if self._end == len(view):
            self._buffer = self._buffer + bytes(len(view))
            view = memoryview(self._buffer)
        size = self.socket.recv_into(view[self._end :])
        if not size:
            raise ConnectionError("the server closed the connection")
        self._end += size
        frames = []
        while self._end - self._begin >= 4:
            begin = self._begin + 4
            end = begin + int.from_bytes(view[self._begin : begin], "big")
            if end > self._end:
                break
            frames.append(view[begin:end])
            self._begin = end
        return frames


def leaders(bootstrap: str, topic: str) -> dict[int, Connection]:
    """Return a connection per partition, to its leader. Waits until every partition has one."""
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    frame = b"".join(
        encode_request(
            request, api_version=_METADATA_VERSION, correlation_id=1, client_id="benchmark"
        )
    )
    connection = Connection(host, int(port))
    for _ in range(100):
        connection.socket.sendall(frame)
        answers: list[memoryview] = []
        while not answers:
            answers = connection.frames()
        _, response = decode_response(MetadataRequest.API_KEY, _METADATA_VERSION, answers[0])
        if not isinstance(response, MetadataResponse):
            raise TypeError(f"not a metadata response: {response}")
        addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        partitions = response.topics[0].partitions
        if partitions and all(partition.leader_id in addresses for partition in partitions):
            connection.socket.close()
            return {
                partition.partition_index: Connection(*addresses[partition.leader_id])
                for partition in sorted(partitions, key=lambda entry: entry.partition_index)
            }
        time.sleep(0.1)
    raise ConnectionError(f"no leaders for {topic}")


def produce_frame(
    topic: str, partition: int, batch_bytes: int, record_bytes: int, acks: int
) -> bytes:
    """Build one Produce request of one batch, random bytes."""
    now_ms = int(time.time() * 1000)
    records = [
        Record(index, now_ms, None, os.urandom(record_bytes), ())
        for index in range(max(1, batch_bytes // record_bytes))
    ]
    return frame_of(topic, partition, encode_batch(records), acks)


def frame_of(topic: str, partition: int, batch: bytes, acks: int) -> bytes:
    """Build one Produce request of this batch."""
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return b"".join(
        encode_request(
            request, api_version=_PRODUCE_VERSION, correlation_id=7, client_id="benchmark"
        )
    )


def _check(frame: memoryview) -> None:
    _, response = decode_response(ProduceRequest.API_KEY, _PRODUCE_VERSION, frame)
    if not isinstance(response, ProduceResponse):
        raise TypeError(f"not a produce response: {response}")
    error = response.responses[0].partition_responses[0].error_code
    if error:
        raise ConnectionError(f"produce failed: {ErrorCode(error).name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The rate of a run, and its answers: of batches, or of fetches."""

    mb_per_s: float
    answers: int
    seconds: float


def throughput(
    bootstrap: str,
    topic: str,
    *,
    batch_bytes: int,
    acks: int,
    window: int = 8,
    seconds: float = 5.0,
) -> Throughput:
    """Keep `window` requests in flight per partition for `seconds`."""
    connections = leaders(bootstrap, topic)
    selector = selectors.DefaultSelector()
    frames = {
        partition: produce_frame(topic, partition, batch_bytes, 1024, acks)
        for partition in connections
    }
    started_s = time.perf_counter()
    sent = answered = 0
    for partition, connection in connections.items():
        selector.register(connection.socket, selectors.EVENT_READ, partition)
        for _ in range(window):
            connection.socket.sendall(frames[partition])
            sent += 1
    while answered < sent:
        events = selector.select(_SILENCE_S)
        if not events:
            raise TimeoutError(f"no answer for {_SILENCE_S:.0f} s")
        for key, _ in events:
            for answer in connections[key.data].frames():
                _check(answer)
                answered += 1
                if time.perf_counter() - started_s < seconds:
                    connections[key.data].socket.sendall(frames[key.data])
                    sent += 1
    elapsed_s = time.perf_counter() - started_s
    _close(connections)
    return Throughput(
        mb_per_s=answered * batch_bytes / elapsed_s / 1e6, answers=answered, seconds=elapsed_s
    )


def _fetch_frame(topic: str, partition: int, offset: int, fetch_bytes: int = FETCH_BYTES) -> bytes:
    """Build a Fetch that waits for nothing."""
    place = FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=fetch_bytes
    )
    request = FetchRequest(
        max_bytes=fetch_bytes, topics=[FetchTopic(topic=topic, partitions=[place])]
    )
    chunks = encode_request(
        request, api_version=_FETCH_VERSION, correlation_id=9, client_id="benchmark"
    )
    return b"".join(chunks)


def _records_of(frame: memoryview) -> memoryview:
    """Return the records of a response with one partition."""
    _, response = decode_response(FetchRequest.API_KEY, _FETCH_VERSION, frame)
    if not isinstance(response, FetchResponse):
        raise TypeError(f"not a fetch response: {response}")
    data = response.responses[0].partitions[0]
    if data.error_code:
        raise ConnectionError(f"fetch failed: {ErrorCode(data.error_code).name}")
    records: Any = data.records  # one buffer, as decoded
    return memoryview(records or b"")


def fetches(
    bootstrap: str, topic: str, *, seconds: float, fetch_bytes: int = FETCH_BYTES
) -> Throughput:
    """Fetch `fetch_bytes` after each other from each partition; at its end, from its beginning."""
    connections = leaders(bootstrap, topic)
    selector = selectors.DefaultSelector()
    offsets = dict.fromkeys(connections, 0)
    started_s = time.perf_counter()
    fetched_bytes = answers = 0
    for partition, connection in connections.items():
        selector.register(connection.socket, selectors.EVENT_READ, partition)
        connection.socket.sendall(_fetch_frame(topic, partition, 0, fetch_bytes))
    while time.perf_counter() - started_s < seconds:
        events = selector.select(_SILENCE_S)
        if not events:
            raise TimeoutError(f"no answer for {_SILENCE_S:.0f} s")
        for key, _ in events:
            partition = key.data
            for answer in connections[partition].frames():
                records = _records_of(answer)
                fetched_bytes += len(records)
                answers += bool(records)
                offset = 0
                for _, header in iterate_headers(records):
                    offset = header.next_offset
                offsets[partition] = offset
                frame = _fetch_frame(topic, partition, offset, fetch_bytes)
                connections[partition].socket.sendall(frame)
    elapsed_s = time.perf_counter() - started_s
    _close(connections)
    return Throughput(mb_per_s=fetched_bytes / elapsed_s / 1e6, answers=answers, seconds=elapsed_s)


def send_batches(bootstrap: str, topic: str, batches: Sequence[bytes], *, rounds: int) -> None:
    """Write the batches to partition 0, again and again; each round is acknowledged as one."""
    connections = leaders(bootstrap, topic)
    connection = connections[0]
    frames = [frame_of(topic, 0, batch, -1) for batch in batches]
    for _ in range(rounds):
        connection.socket.sendall(b"".join(frames))
        answered = 0
        while answered < len(frames):
            for answer in connection.frames():
                _check(answer)
                answered += 1
    _close(connections)


def latencies_ms(
    bootstrap: str, topic: str, *, rate_per_s: float, seconds: float, acks: int = -1
) -> list[float]:
    """Send 1 KiB batches at a fixed rate; return every latency, sorted, ms."""
    connections = leaders(bootstrap, topic)
    selector = selectors.DefaultSelector()
    frames, due_s = {}, {}
    for partition, connection in connections.items():
        selector.register(connection.socket, selectors.EVENT_READ, partition)
        frames[partition] = produce_frame(topic, partition, 1024, 1024, acks)
        due_s[partition] = list[float]()
    order = list(connections)
    count, sent = int(rate_per_s * seconds), 0
    latencies: list[float] = []
    started_s = time.perf_counter()
    while len(latencies) < count:
        now_s = time.perf_counter() - started_s
        while sent < count and sent / rate_per_s <= now_s:
            partition = order[sent % len(order)]
            connections[partition].socket.sendall(frames[partition])
            due_s[partition].append(sent / rate_per_s)
            sent += 1
        wait_s = _SILENCE_S if sent == count else max(0.0, sent / rate_per_s - now_s)
        events = selector.select(wait_s)
        if not events and sent == count:
            raise TimeoutError(f"no answer for {_SILENCE_S:.0f} s")
        for key, _ in events:
            for answer in connections[key.data].frames():
                _check(answer)
                done_s = time.perf_counter() - started_s
                latencies.append((done_s - due_s[key.data].pop(0)) * 1000)
    _close(connections)
    return sorted(latencies)


def _close(connections: dict[int, Connection]) -> None:
    for connection in connections.values():
        connection.socket.close()


def percentile(sorted_values: list[float], fraction: float) -> float:
    """Return a percentile of sorted values."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * fraction))]
