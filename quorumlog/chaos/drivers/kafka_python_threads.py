"""Threads for kafka-python: each client has its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kafka.errors import KafkaError

from quorumlog.chaos.drivers.foreign_errors import driver_error
from quorumlog.chaos.drivers.worker import Worker


@contextmanager
def translated() -> Iterator[None]:
    """Translate errors of the library into DriverError."""
    try:
        yield
    except (KafkaError, OSError) as error:
        raise driver_error(error) from error


class Threaded:
    """A client of the library, made and used in one thread."""

    def __init__(self, worker: Worker, client: Any) -> None:
        self._worker: Final = worker
        self._client: Final = client

    async def _call(self, work: Callable[[], Any]) -> Any:
        with translated():
            return await self._worker.call(work)

    async def close(self) -> None:
        """Release all resources; a dynamic member leaves its group."""
        try:
            await self._call(self._client.close)
        finally:
            self._worker.close()


async def made(client_id: str, make: Callable[[], Any]) -> tuple[Worker, Any]:
    """Return a client and its thread. Raises DriverError if no broker answers."""
    worker = Worker(client_id)
    try:
        with translated():
            return worker, await worker.call(make)
    except BaseException:
        worker.close()
        raise
