"""The common part of producer, consumer and admin: opening, closing, and dropped clients."""

import warnings
from abc import ABC, abstractmethod
from typing import Generic, Protocol, Self, TypeVar

from quorumlog.client.io.closing import Close, close_all
from quorumlog.client.io.cluster import Cluster


class _Opened(Protocol):
    """The parts of an open client."""

    @property
    def cluster(self) -> Cluster: ...


OpenedT = TypeVar("OpenedT", bound=_Opened)


class AsyncClient(ABC, Generic[OpenedT]):
    """A client that is opened by `start` or `async with`, and closed by `stop` or the block's end.

    Invariant: its opened parts do not refer to the client. So a client that is dropped while it is
    open is garbage-collected, which gives a ResourceWarning and closes it in the background.
    """

    _opened: OpenedT | None = None

    async def start(self) -> None:
        """Open the client. Raises KafkaError (definite) if no broker responds."""
        if self._opened is not None:
            raise RuntimeError(f"the {type(self).__name__.lower()} is running already")
        self._opened = await self._open()

    @abstractmethod
    async def _open(self) -> OpenedT:
        """Connect to the cluster, and return the parts of the open client."""

    @abstractmethod
    async def stop(self) -> None:
        """Finish the work in progress, then close."""

    @abstractmethod
    def _closings(self, opened: OpenedT) -> list[Close]:
        """Return the functions that close the client's parts, in order."""

    async def _close(self, opened: OpenedT) -> None:
        """Close `opened`, unless another call has begun to close it."""
        if self._opened is opened:
            self._opened = None
            await close_all(*self._closings(opened))

    def _running(self) -> OpenedT:
        """Return the open parts. Raises RuntimeError if not open, or in another event loop."""
        opened = self._opened
        if opened is None:
            kind = type(self).__name__.lower()
            raise RuntimeError(f"the {kind} is not running: use `async with`, or start()")
        opened.cluster.check_loop(self)
        return opened

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        await self.stop()

    def __del__(self) -> None:
        if self._opened is not None:
            self._opened.cluster.close_later(*self._drop(self._opened))

    def _drop(self, opened: OpenedT) -> list[Close]:
        """Warn that an open client was dropped; return the functions that close its parts."""
        self._warn_unclosed()
        return self._closings(opened)

    def _warn_unclosed(self, loss: str = "") -> None:
        """Give a ResourceWarning; `loss`: the text about lost records, if there are any."""
        message = f"unclosed {type(self).__name__}: use `async with`, or stop(){loss}"
        warnings.warn(message, ResourceWarning, stacklevel=3, source=self)
