"""The common part of producer, consumer and admin: they are opened, closed, and may be dropped."""

import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from quorumlog.client.io.closing import Close, close_all
from quorumlog.client.io.cluster import Cluster


class _Opened(Protocol):
    """What a client has while it is open."""

    @property
    def cluster(self) -> Cluster: ...


OpenedT = TypeVar("OpenedT", bound=_Opened)


class AsyncClient(ABC, Generic[OpenedT]):
    """Opened by `start` or `async with`, closed by `stop` or the end of the block.

    Invariant: nothing that it opens refers to the client. So a client that is dropped while it is
    open is noticed: a ResourceWarning, and it is closed in the background.
    """

    _opened: OpenedT | None = None

    async def start(self) -> None:
        """Find the cluster. Raises KafkaError (definite) if no broker answers."""
        if self._opened is not None:
            raise RuntimeError(f"the {type(self).__name__.lower()} is running already")
        self._opened = await self._open()

    @abstractmethod
    async def _open(self) -> OpenedT:
        """Connect, and make what the client needs while it is open."""

    @abstractmethod
    async def stop(self) -> None:
        """Finish what is under way, then close."""

    async def _stop_after(self, error: type[BaseException] | None) -> None:
        """End an `async with` block; `error` is what ended it, None if nothing was raised."""
        del error
        await self.stop()

    @abstractmethod
    def _closings(self, opened: OpenedT) -> list[Close]:
        """Return what closes the client, in order."""

    async def _close(self, opened: OpenedT) -> None:
        """Close `opened`, unless another call of `stop` has begun to."""
        if self._opened is opened:
            self._opened = None
            await close_all(*self._closings(opened))

    def _running(self) -> OpenedT:
        """Return what is open. Raises RuntimeError if nothing is, or in another event loop."""
        opened = self._opened
        if opened is None:
            kind = type(self).__name__.lower()
            raise RuntimeError(f"the {kind} is not running: use `async with`, or start()")
        opened.cluster.check_loop(self)
        return opened

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop_after(exc_type)

    def __del__(self) -> None:
        if self._opened is not None:
            self._opened.cluster.close_later(*self._drop(self._opened))

    def _drop(self, opened: OpenedT) -> list[Close]:
        """Warn that the client was dropped while it was open; return what closes it."""
        self._warn_unclosed()
        return self._closings(opened)

    def _warn_unclosed(self, loss: str = "") -> None:
        """Warn; `loss` says what the drop costs, if anything."""
        message = f"unclosed {type(self).__name__}: use `async with`, or stop(){loss}"
        warnings.warn(message, ResourceWarning, stacklevel=3, source=self)
