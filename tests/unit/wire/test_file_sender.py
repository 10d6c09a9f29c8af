"""A connection that sends ranges of files: its end, its errors, and its back-pressure."""

import asyncio
import errno
import gc
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.io import file_sender
from tests.support.waiting import loop_turns, until
from tests.support.wire.file_chunks import ScriptedFile, Sending, connected, received

CONTENT = bytes(number % 251 for number in range(200_000))
Story = Callable[[Callable[[], FileRange]], Coroutine[Any, Any, None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Run a story with the range of a whole file; no descriptor is left behind."""

    def run(story: Story) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.sleep(0))
            before = open_descriptors()
            path = tmp_path / "file"
            new_range = partial(new_range_of, path)
            runner.run(asyncio.wait_for(story(new_range), 20))
            runner.run(loop_turns(5))
            gc.collect()  # an error's traceback refers to the range
            assert open_descriptors() == before

    return run


def new_range_of(path: Path) -> FileRange:
    return FileRange(ScriptedFile(path, CONTENT), 0, len(CONTENT))


def open_descriptors() -> set[str]:
    """Return the sockets and files of stories that are open."""
    found = set[str]()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of the listing itself
            found.add(f"{entry.name}: {entry.readlink()}")
    return {one for one in found if "socket:" in one or one.endswith("/file")}


def test_a_close_waits_for_the_ranges(run: Callable[[Story], None]) -> None:
    async def story(new_range: Callable[[], FileRange]) -> None:
        protocol = Sending()
        peer = await connected(protocol)
        protocol.write([b"head", new_range(), b"tail"])
        assert not protocol.is_writable
        assert protocol.unsent_bytes > len(CONTENT) - 100_000
        protocol.close()
        protocol.write([b"dropped"])
        assert await received(peer, 1 << 30) == b"head" + CONTENT + b"tail"
        assert await protocol.ended is None
        assert protocol.notes == ["paused"]
        assert protocol.unsent_bytes == 0
        peer.close()

    run(story)


def test_a_peer_that_sends_no_more_still_receives_the_ranges(run: Callable[[Story], None]) -> None:
    async def story(new_range: Callable[[], FileRange]) -> None:
        protocol = Sending()
        peer = await connected(protocol)
        protocol.write([new_range()])
        peer.shutdown(socket.SHUT_WR)
        await until(lambda: protocol.is_closing)
        assert await received(peer, 1 << 30) == CONTENT
        assert await protocol.ended is None
        peer.close()

    run(story)


@pytest.mark.parametrize("ending", ["abort", "the peer closes"])
def test_the_end_of_a_connection_releases_the_file(
    run: Callable[[Story], None], ending: str
) -> None:
    async def story(new_range: Callable[[], FileRange]) -> None:
        protocol = Sending()
        peer = await connected(protocol)
        protocol.write([b"head", new_range()])
        await received(peer, 1000)
        if ending == "abort":
            protocol.abort()
        else:
            peer.close()
        error = await protocol.ended
        assert error is None or isinstance(error, BrokenPipeError | ConnectionResetError)
        peer.close()

    run(story)


def test_pages_that_were_evicted_are_read_by_another_thread(run: Callable[[Story], None]) -> None:
    async def story(new_range: Callable[[], FileRange]) -> None:
        protocol = Sending(holds_reads=True)
        assert protocol.held is not None
        peer = await connected(protocol)
        part = new_range()
        file = cast(ScriptedFile, part.file)
        file.misses = 2
        protocol.write([b"head", part, b"tail"])
        assert await received(peer, 4) == b"head"
        await loop_turns(5)
        assert (file.reads, len(protocol.held)) == (0, 1)
        protocol.held.pop()()
        reading = asyncio.ensure_future(received(peer, len(CONTENT) + 4))
        await until(lambda: protocol.held)
        protocol.held.pop()()
        assert await reading == CONTENT + b"tail"
        assert file.reads == 2
        assert protocol.notes == ["paused", "resumed"]
        protocol.abort()
        await protocol.ended
        peer.close()

    run(story)


@pytest.mark.parametrize("is_aborted", [True, False])
def test_a_read_that_fails_ends_the_connection(
    run: Callable[[Story], None], *, is_aborted: bool
) -> None:
    """A read under way at the end of the connection has no effect."""

    async def story(new_range: Callable[[], FileRange]) -> None:
        protocol = Sending(holds_reads=True)
        assert protocol.held is not None
        peer = await connected(protocol)
        part = new_range()
        file = cast(ScriptedFile, part.file)
        file.misses, file.error = 1, OSError(errno.EIO, "the disk refuses")
        protocol.write([part])
        if is_aborted:
            protocol.abort()
        protocol.held.pop()()
        assert await protocol.ended is (None if is_aborted else file.error)
        peer.close()

    run(story)


def test_a_file_that_is_too_short_ends_the_connection(run: Callable[[Story], None]) -> None:
    async def story(new_range: Callable[[], FileRange]) -> None:
        protocol = Sending()
        peer = await connected(protocol)
        part = new_range()
        os.ftruncate(part.file.fileno(), 0)
        protocol.write([part])
        error = await protocol.ended
        assert isinstance(error, OSError)
        assert "a file ends at byte 0 of a lent range" in str(error)
        peer.close()

    run(story)


def test_without_a_handle_for_the_duplicate_the_bytes_are_written(
    run: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def story(new_range: Callable[[], FileRange]) -> None:
        protocol = Sending()
        peer = await connected(protocol)
        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", refuse)
            protocol.write([b"head", new_range(), b"tail"])
        protocol.close()
        assert await received(peer, 1 << 30) == b"head" + CONTENT + b"tail"
        peer.close()

    run(story)


class Encrypted:
    """A transport that encrypts."""

    def get_extra_info(self, name: str) -> object:
        return object() if name in {"sslcontext", "socket"} else None


def test_a_transport_that_encrypts_has_no_duplicate() -> None:
    assert file_sender.duplicate(cast(asyncio.Transport, Encrypted())) is None
