"""What a verb of the nemesis gives back, with an event loop or without."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Final, Self

NodeIds = tuple[int, ...]


class Act:
    """One verb of the nemesis. Without an event loop it is done; a coroutine may await it."""

    def __init__(self, future: "Future[NodeIds]") -> None:
        self._future: Final = future

    @property
    def node_ids(self) -> NodeIds:
        """The nodes that it was done to. Waits until it is done."""
        return self._future.result()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from asyncio.wrap_future(self._future).__await__()
        return self


class Passing:
    """A fault for the time of a block: `with nemesis.paused(...)`, or `async with`.

    The block gets the ids of the nodes.
    """

    def __init__(self, begin: Callable[[], Act], end: Callable[[NodeIds], Act]) -> None:
        self._begin: Final = begin
        self._end: Final = end
        self._node_ids: NodeIds = ()

    def __enter__(self) -> NodeIds:
        self._node_ids = self._begin().node_ids
        return self._node_ids

    def __exit__(self, *_: object) -> None:
        _ = self._end(self._node_ids).node_ids

    async def __aenter__(self) -> NodeIds:
        self._node_ids = (await self._begin()).node_ids
        return self._node_ids

    async def __aexit__(self, *_: object) -> None:
        await self._end(self._node_ids)
