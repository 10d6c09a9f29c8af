"""Lines of a descriptor: pipes and files, every split, and nobody kept waiting."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from quorumlog.cli.lines import read_lines


async def collect(fd: int) -> list[bytes]:
    return [line async for lines in read_lines(fd) for line in lines]


def piped(*pieces: bytes) -> list[bytes]:
    """Return the lines read from a pipe that is given one piece after the other."""

    async def scenario() -> list[bytes]:
        read_fd, write_fd = os.pipe()
        try:
            reading = asyncio.create_task(collect(read_fd))
            for piece in pieces:
                os.write(write_fd, piece)
                for _ in range(5):
                    await asyncio.sleep(0)
            os.close(write_fd)
            return await reading
        finally:
            os.close(read_fd)

    return asyncio.run(scenario())


def test_the_lines_do_not_depend_on_how_the_bytes_come() -> None:
    text = b"one\n\ntwo\r\n\xff\nlast"
    assert piped(text) == [b"one", b"", b"two\r", b"\xff", b"last"]
    for cut in range(len(text)):
        assert piped(text[:cut], text[cut:]) == piped(text)


def test_a_regular_file_and_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(50_000)))
    with path.open("rb") as file:
        lines = asyncio.run(collect(file.fileno()))
    assert lines == [b"%d" % number for number in range(50_000)]
    with Path("/dev/null").open("rb") as file:
        assert asyncio.run(collect(file.fileno())) == []


async def test_waiting_for_a_line_can_be_cancelled() -> None:
    """News of bytes that have been read already must not lead to a read that blocks."""

    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"a\n")
    release = threading.Timer(20, os.close, [write_fd])  # a blocked read would end here
    release.start()
    got: list[list[bytes]] = []

    async def read() -> None:
        async for lines in read_lines(read_fd):
            got.append(lines)  # noqa: PERF401 - what came before the end is asked for

    reading = asyncio.create_task(read())
    for _ in range(10):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert got == [[b"a"]]
    release.cancel()
    release.join()
    os.close(write_fd)
    os.close(read_fd)


def test_a_line_without_end_is_refused() -> None:
    with (
        Path("/dev/zero").open("rb") as endless,
        pytest.raises(ValueError, match="a line is longer than"),
    ):
        asyncio.run(collect(endless.fileno()))
