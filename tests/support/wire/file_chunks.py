"""Ranges of a file whose pages a test evicts, and a connection that sends them on a real socket."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from quorumlog.storage.io.lent_descriptor import LentDescriptor
from quorumlog.wire.io.file_sender import Done
from quorumlog.wire.io.frames import FrameProtocol


class ScriptedFile(LentDescriptor):
    """A file of which `misses` of the next checks find no pages in memory.

    `reads` counts the reads that may wait; they raise `error`, if it is set.
    """

    __slots__ = ("error", "misses", "reads")

    def __init__(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        super().__init__(os.open(path, os.O_RDWR))
        self.misses = self.reads = 0
        self.error: OSError | None = None

    def is_cached(self, size: int, position: int) -> bool:
        self.misses -= 1
        return self.misses < 0

    def pread(self, size: int, position: int) -> bytes:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return super().pread(size, position)


class Sending(FrameProtocol):
    """A connection that sends; `notes`: the calls of its hooks. Reads wait for `held`."""

    def __init__(self, *, holds_reads: bool = False) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.held: list[Callable[[], None]] | None = [] if holds_reads else None

    def frame_received(self, frame: memoryview) -> None:
        self.notes.append(bytes(frame).decode())

    def writing_paused(self) -> None:
        self.notes.append("paused")

    def writing_resumed(self) -> None:
        self.notes.append("resumed")

    def connection_closed(self, error: Exception | None) -> None:
        self.ended.set_result(error)

    def read_elsewhere(self, read: Callable[[], bytes], done: Done) -> None:
        def perform() -> None:
            try:
                outcome: bytes | Exception = read()
            except OSError as error:
                outcome = error
            done(outcome)

        if self.held is None:
            asyncio.get_running_loop().call_soon(perform)
        else:
            self.held.append(perform)


async def connected(protocol: Sending) -> socket.socket:
    """Connect the protocol to a socket with small buffers; return the other end.

    The sockets are local: with such buffers, TCP waits for its timers.
    """
    ours, peer = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    peer.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, ours)
    return peer


async def received(peer: socket.socket, size: int, *, at_once: int = 1 << 16) -> bytes:
    """Read `size` bytes, or fewer at the end of the stream."""
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < size:
        part = await loop.sock_recv(peer, min(at_once, size - len(data)))
        if not part:
            break
        data += part
    return bytes(data)
