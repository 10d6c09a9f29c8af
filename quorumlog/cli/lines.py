"""Reads the lines of a file descriptor as soon as they arrive."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

_CHUNK_BYTES: Final = 1 << 16
_LINE_MAX_BYTES: Final = 1 << 23  # far above the brokers' limit for one record


async def read_lines(fd: int) -> AsyncIterator[list[bytes]]:
    """Yield the whole lines received, at least one, without line ends; wait for more.

    The last line needs no line end. Raises ValueError for a line above 8 MiB. It does not read
    in a thread, because Ctrl-C would then wait for the next line.
    """
    rest = b""
    async for chunk in _chunks(fd):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LINE_MAX_BYTES:
            raise ValueError(f"a line is longer than {_LINE_MAX_BYTES} bytes")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    while True:
        await _until_readable(fd)
        chunk = os.read(fd, _CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def _until_readable(fd: int) -> None:
    """Return when a read would not block.

    Each call polls again: an earlier result may no longer hold.
    """
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def tell() -> None:
        loop.remove_reader(fd)
        readable.set_result(None)

    try:
        loop.add_reader(fd, tell)
    except PermissionError:  # a regular file never blocks
        return
    try:
        await readable
    finally:
        loop.remove_reader(fd)
