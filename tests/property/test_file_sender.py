"""Buffers and ranges of files arrive once and in order, whatever the socket takes at a time."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.message import Sendable, contents
from quorumlog.wire.io import file_sender
from tests.support.sizes import tries
from tests.support.wire.file_chunks import ScriptedFile, Sending, connected, received

CONTENT = bytes(number % 251 for number in range(300_000))
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
sizes = st.one_of(st.integers(0, 40), st.integers(1, 90_000))
chunks = st.tuples(st.booleans(), st.integers(0, 200_000), sizes)
writes = st.lists(
    st.tuples(st.lists(chunks, min_size=1, max_size=4), st.integers(0, 3)), max_size=6
)


@pytest.mark.parametrize("new_loop", LOOPS)
@given(writes=writes, misses=st.lists(st.integers(0, 4), max_size=6), at_once=sizes)
@settings(
    max_examples=tries(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_all_bytes_arrive_in_order(
    tmp_path: Path,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    writes: list[tuple[list[tuple[bool, int, int]], int]],
    misses: list[int],
    at_once: int,
) -> None:
    async def send_and_receive() -> None:
        file = ScriptedFile(tmp_path / "file", CONTENT)
        protocol = Sending()
        peer = await connected(protocol)
        expected = bytearray()

        async def write() -> None:
            for index, (some, turns) in enumerate(writes):
                parts: list[Sendable] = [
                    FileRange(file, position, size)
                    if is_range
                    else CONTENT[position : position + size]
                    for is_range, position, size in some
                    if size or not is_range
                ]
                expected.extend(b"".join(contents(parts)))
                file.misses = misses[index] if index < len(misses) else 0
                protocol.write(parts)
                for _ in range(turns):
                    await asyncio.sleep(0)
            protocol.close()

        writing = asyncio.ensure_future(write())
        got = await received(peer, 1 << 30, at_once=max(at_once, 200))
        await writing
        peer.close()
        assert await protocol.ended is None
        assert got == expected
        assert protocol.notes.count("paused") - protocol.notes.count("resumed") in (0, 1)

    with pytest.MonkeyPatch.context() as patched, asyncio.Runner(loop_factory=new_loop) as runner:
        patched.setattr(file_sender, "TURN_BYTES", 50_000)
        patched.setattr(file_sender, "COLD_BYTES", 7_000)
        runner.run(asyncio.wait_for(send_and_receive(), 20))
