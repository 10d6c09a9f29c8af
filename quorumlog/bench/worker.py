"""The process that sends and reads for the scenarios, apart from the owner of the nodes.

Requests and replies are pickled on a pipe of `multiprocessing`, which only these two processes
have. The process ends when its owner closes the pipe, or ends.
"""

import asyncio
import logging
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from quorumlog.bench.consume import read_copies
from quorumlog.bench.latency import LatencyRun
from quorumlog.bench.load import (
    Driver,
    Kept,
    LatencyLoad,
    LatencyResult,
    ProduceLoad,
    ProduceResult,
    compare,
)
from quorumlog.bench.produce import Client, ProduceRun, Progress
from quorumlog.client import KafkaError

_ENDS_WITHIN_S: Final = 5.0
_ReplyT = TypeVar("_ReplyT")


class LoadFailed(Exception):
    """A load could not be run; the message has the error."""


@dataclass(frozen=True, slots=True)
class _Acknowledged:
    """Progress of the running load."""

    count: int


@dataclass(frozen=True, slots=True)
class _Release:
    """Send the record that the running load holds, and the rest."""


@dataclass(frozen=True, slots=True)
class _ReadBack:
    """Compare the logs with the outcomes of the last load."""

    topic: str


class Worker:
    """The owner's side of the process. Use it as a context manager; its methods block."""

    def __init__(self, client: Client, driver: Driver = "client") -> None:
        context = get_context("spawn")
        self._pipe, remote = context.Pipe()
        self._process: Final = context.Process(
            target=_serve, args=(remote, dict(client), driver), daemon=True
        )
        self._process.start()
        remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._pipe.close()
        self._process.join(0 if kind is not None else _ENDS_WITHIN_S)
        if self._process.is_alive():  # its load has no receiver any more
            self._process.kill()
            self._process.join()

    def produce(self, load: ProduceLoad, progress: Progress = lambda _: None) -> ProduceResult:
        """Run a load; `progress` is called 20 times a second, or 100 times while a record is held.

        It returns True once, to release that record. Raises LoadFailed.
        """
        return self._call(load, ProduceResult, progress)

    def latency(self, load: LatencyLoad) -> LatencyResult:
        """Run a load. Raises LoadFailed."""
        return self._call(load, LatencyResult, lambda _: None)

    def read_back(self, topic: str) -> Kept:
        """Compare the logs with the outcomes of the last load, which kept them."""
        return self._call(_ReadBack(topic), Kept, lambda _: None)

    def _call(self, request: object, kind: type[_ReplyT], progress: Progress) -> _ReplyT:
        try:
            self._pipe.send(request)
            while True:
                reply = self._pipe.recv()
                if isinstance(reply, _Acknowledged):
                    if progress(reply.count) is True:
                        self._pipe.send(_Release())
                elif isinstance(reply, LoadFailed):
                    raise reply
                else:
                    return cast(_ReplyT, reply)
        except (EOFError, OSError) as error:
            raise LoadFailed(f"the process of the load ended, waiting for {kind}") from error


def _serve(pipe: "Connection[Any, Any]", client: dict[str, Any], driver: Driver) -> None:
    """Run the requests of the pipe, one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides about Ctrl-C
    logging.getLogger("quorumlog").setLevel(logging.ERROR)  # of brokers that were killed on purpose
    outcomes = bytearray()

    def progress(count: int) -> bool:
        pipe.send(_Acknowledged(count))
        return pipe.poll() and isinstance(pipe.recv(), _Release)

    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            if isinstance(request, ProduceLoad):
                result, outcomes = _produce(client, driver, request, progress)
                pipe.send(result)
            elif isinstance(request, LatencyLoad):
                latency = LatencyRun(client, request, lambda _: None)
                pipe.send(asyncio.run(latency.run()))
            else:
                read = read_copies(client, request.topic, len(outcomes))
                pipe.send(compare(outcomes, asyncio.run(read)))
        except (KafkaError, ValueError, ImportError) as error:
            pipe.send(LoadFailed(f"{type(error).__name__}: {error}"))
        except BrokenPipeError:
            return


def _produce(
    client: dict[str, Any], driver: Driver, load: ProduceLoad, progress: Progress
) -> tuple[ProduceResult, bytearray]:
    if driver == "confluent":
        from quorumlog.bench.confluent import run_confluent

        return run_confluent(client, load, progress)
    run = ProduceRun(client, load, progress)
    return asyncio.run(run.run()), run.outcomes
