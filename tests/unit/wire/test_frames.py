"""Frames are cut from a stream in any pieces, within a limit, and with back-pressure."""

import asyncio
import struct
import threading
from typing import cast

import pytest

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.io import frames
from quorumlog.wire.io.frames import FIRST_SHARED_BYTES, PREPENDED_MAX, SHARED_BYTES, FrameProtocol


class Transport:
    """What a FrameProtocol needs of a transport, and notes of what it did with it."""

    def __init__(self) -> None:
        self.reading, self.closed = True, False
        self.written: list[bytes] = []

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def writelines(self, buffers: list[bytes]) -> None:
        self.written += buffers

    def write(self, buffer: bytes) -> None:
        self.written.append(buffer)

    def close(self) -> None:
        self.closed = True

    abort = close


class Recorder(FrameProtocol):
    def __init__(self, frame_max_bytes: int = 2**24, pause_at: bytes | None = None) -> None:
        super().__init__(frame_max_bytes=frame_max_bytes)
        self.fake = Transport()
        self.frames: list[bytes] = []
        self.ended: list[Exception | None] = []
        self.pause_at = pause_at
        self.connection_made(cast(asyncio.BaseTransport, self.fake))

    def frame_received(self, frame: memoryview) -> None:
        assert frame.readonly
        self.frames.append(bytes(frame))
        if self.pause_at is not None and bytes(frame) == self.pause_at:
            self.keep_frame()
            self.pause_frames()

    def connection_closed(self, error: Exception | None) -> None:
        self.ended.append(error)

    def feed(self, data: bytes) -> int:
        """As a transport does: as much as the buffer takes. Return the number of bytes read."""
        position = 0
        while position < len(data) and self.fake.reading and not self.fake.closed:
            room = self.get_buffer(-1)
            assert len(room) > 0
            size = min(len(room), len(data) - position)
            room[:size] = data[position : position + size]
            self.buffer_updated(size)
            position += size
        return position


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def test_any_split_gives_the_same_frames() -> None:
    frames = [b"", b"a", b"bc" * 10, b"", b"d" * 30]
    data = framed(*frames)
    for first in range(len(data) + 1):
        for second in (first, (first + len(data)) // 2):
            protocol = Recorder()
            for piece in (data[:first], data[first:second], data[second:]):
                protocol.feed(piece)
            assert protocol.frames == frames


def held_bytes(protocol: FrameProtocol) -> int:
    """The size of the connection's own buffer."""
    return len(protocol._received[0])


def test_the_buffer_grows_with_what_comes_and_is_released_with_the_frame() -> None:
    size = 12 * SHARED_BYTES
    protocol = Recorder()
    assert held_bytes(protocol) == 0
    protocol.feed(struct.pack(">i", size))
    assert held_bytes(protocol) == 4  # a claim alone costs us nothing
    protocol.feed(bytes(200_000))
    assert held_bytes(protocol) <= 400_008
    protocol.feed(bytes(size - 200_001))
    assert protocol.frames == []
    assert held_bytes(protocol) <= size + 4
    protocol.feed(b"x")
    assert [len(frame) for frame in protocol.frames] == [size]
    assert held_bytes(protocol) == 0


def test_a_large_frame_shrinks_to_the_beginning_of_the_next() -> None:
    protocol = Recorder()
    large, small = framed(bytes(3 * SHARED_BYTES)), framed(b"small")
    protocol.feed(large[:-10])
    protocol.feed(large[-10:] + small[:7])
    assert held_bytes(protocol) == 7
    protocol.feed(small[7:])
    assert protocol.frames[1:] == [b"small"]


def test_the_shared_buffer_grows_with_the_first_read_that_fills_it() -> None:
    """Threads have a buffer each: this one is new."""
    sizes: list[int] = []
    protocols: list[Recorder] = []

    def read() -> None:
        protocol = Recorder()
        protocols.append(protocol)
        frames = framed(*[b"x" * 10_000] * 30)
        for _ in range(2):
            free = protocol.get_buffer(-1)
            sizes.append(len(free))
            free[:] = frames[: len(free)]
            protocol.buffer_updated(len(free))
            frames = frames[len(free) :].ljust(SHARED_BYTES, b"\0")

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    [protocol] = protocols
    begun = FIRST_SHARED_BYTES % 10_004
    assert sizes == [FIRST_SHARED_BYTES, SHARED_BYTES - begun]
    assert protocol.frames[:30] == [b"x" * 10_000] * 30
    assert {*protocol.frames[30:]} == {b""}


def test_connections_that_read_in_turn_do_not_mix_their_bytes() -> None:
    sizes = (3, PREPENDED_MAX - 10, PREPENDED_MAX + 10, SHARED_BYTES, 2 * SHARED_BYTES)
    protocols = [Recorder() for _ in sizes]
    frames = [bytes([at]) * size for at, size in enumerate(sizes, 1)]
    streams = [framed(b"first", frame, b"last") for frame in frames]
    step = 50_000
    for start in range(0, max(map(len, streams)), step):
        for protocol, stream in zip(protocols, streams, strict=True):
            protocol.get_buffer(-1)  # nothing could be read
            protocol.feed(stream[start : start + step])
    for protocol, frame in zip(protocols, frames, strict=True):
        assert protocol.frames == [b"first", frame, b"last"]
        assert held_bytes(protocol) == 0


def test_a_paused_connection_keeps_its_frames_and_no_more() -> None:
    paused, other = Recorder(pause_at=b"stop"), Recorder()
    paused.keep_frame = lambda: None  # type: ignore[method-assign]  # it needs only later frames
    frames = [b"stop", b"a" * PREPENDED_MAX, b"b" * 10]
    paused.feed(framed(*frames))
    assert held_bytes(paused) == len(framed(*frames[1:]))
    other.feed(framed(b"x" * SHARED_BYTES))
    paused.resume_frames()
    assert paused.frames == frames
    assert held_bytes(paused) == 0


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", -(2**31)), "a frame of -2147483648 bytes"),
        (struct.pack(">i", 101), "101"),
        (struct.pack(">i", 2**31 - 1), "2147483647"),
        (b"HTTP", "the peer speaks HTTP"),
        (b"GET ", "the peer speaks HTTP"),
        (b"DELE", "the peer speaks HTTP"),
        (b"PRI ", "the peer speaks HTTP"),
        (b"\x16\x03\x01\x02", "the peer speaks TLS"),
        (b"\x15\x03\x03\x00", "the peer speaks TLS"),
    ],
)
def test_an_impossible_length_closes_and_that_of_another_protocol_is_called_so(
    start: bytes, message: str
) -> None:
    protocol = Recorder(frame_max_bytes=100)
    protocol.feed(framed(b"good") + start + framed(b"never seen"))
    assert protocol.fake.closed
    protocol.connection_lost(None)
    assert protocol.frames == [b"good"]
    (error,) = protocol.ended
    assert isinstance(error, MalformedFrame)
    assert message in str(error)


def test_paused_frames_wait_and_come_in_order() -> None:
    frames = [b"one", b"two", b"stop", b"three", b"stop", b"four"]
    protocol = Recorder(pause_at=b"stop")
    protocol.feed(framed(*frames))
    assert protocol.frames == frames[:3]
    assert not protocol.fake.reading
    protocol.resume_frames()
    assert protocol.frames == frames[:5]
    assert not protocol.fake.reading
    protocol.resume_frames()
    assert protocol.frames == frames
    assert protocol.fake.reading


@pytest.mark.parametrize("size", [40, 40_000, 2 * SHARED_BYTES])
def test_the_view_of_a_kept_frame_keeps_its_bytes(size: int) -> None:
    class Keeper(Recorder):
        def frame_received(self, frame: memoryview) -> None:
            super().frame_received(frame)
            self.kept = frame

    first, second = b"a" * size, b"b" * 60_000
    data = framed(first, second)
    protocol, other = Keeper(pause_at=first), Recorder()
    position = protocol.feed(data[: size + 1000])
    other.feed(framed(b"x" * (SHARED_BYTES - 4)))
    assert protocol.kept == first
    protocol.resume_frames()
    assert held_bytes(protocol) == position - len(framed(first))
    protocol.feed(data[position:])
    assert protocol.frames == [first, second]


def test_nothing_is_delivered_after_close() -> None:
    class Closer(Recorder):
        def frame_received(self, frame: memoryview) -> None:
            super().frame_received(frame)
            self.close()

    protocol = Closer()
    protocol.feed(framed(b"one", b"two"))
    assert protocol.frames == [b"one"]
    protocol.write([b"lost"])
    assert protocol.fake.written == []


@pytest.mark.parametrize("never_pauses", [True, False])
def test_buffers_are_written_whole_and_in_order(
    monkeypatch: pytest.MonkeyPatch, never_pauses: bool
) -> None:
    monkeypatch.setattr(frames, "WRITELINES_NEVER_PAUSES", never_pauses)
    protocol = Recorder()
    protocol.write([b"one"])
    protocol.write([b"two", b"three"])
    assert protocol.fake.written == [b"one", b"two", b"three"]
    protocol.close()
    protocol.write([b"four"])
    assert len(protocol.fake.written) == 3


async def test_drain_waits_for_the_peer() -> None:
    protocol = Recorder()
    await protocol.drain()
    protocol.pause_writing()
    assert not protocol.is_writable
    draining = asyncio.create_task(protocol.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    protocol.resume_writing()
    await draining
    assert protocol.is_writable
    protocol.pause_writing()
    draining = asyncio.create_task(protocol.drain())
    await asyncio.sleep(0)
    protocol.connection_lost(None)
    await draining
    assert protocol.ended == [None]


def test_a_held_connection_reads_once_more_into_a_small_buffer_and_then_stops() -> None:
    class Holder(Recorder):
        def frame_received(self, frame: memoryview) -> None:
            super().frame_received(frame)
            self.hold_frames()

    holder, stream = Holder(), framed(b"a", bytes(PREPENDED_MAX), b"c")
    first = len(framed(b"a"))
    assert holder.feed(stream[:first]) == first
    assert (holder.frames, holder.fake.reading) == ([b"a"], True)
    read = holder.feed(stream[first:])
    assert (read, holder.fake.reading) == (PREPENDED_MAX, False)
    assert holder.frames == [b"a"]
    holder.resume_frames()
    assert holder.fake.reading
    holder.feed(stream[first + read :])
    holder.resume_frames()
    assert holder.frames == [b"a", bytes(PREPENDED_MAX), b"c"]
