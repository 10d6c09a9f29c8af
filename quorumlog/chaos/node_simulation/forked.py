"""Runs each simulation in a forked process, so that its replacements do not affect another run.

A process is forked after all imports, and exits without any clean-up: a collection of the frames
of killed nodes would run their `finally`.
"""

import os
import pickle
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from quorumlog.chaos.node_simulation.settings import NodesResult, NodesSettings
from quorumlog.wire.codec.decoder import decoder_for
from quorumlog.wire.codec.encoder import encoder_for
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.schemas import request_class, response_class

_MODULES: Final = ("quorumlog.chaos.drivers.client_driver", "quorumlog.chaos.node_simulation.run")
_APIS: Final = (
    "Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch",
    "FindCoordinator", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "ApiVersions",
    "CreateTopics", "InitProducerId", "OffsetForLeaderEpoch",
)  # fmt: skip


@cache
def warm_up() -> None:
    """Import the modules of a run and compile the codecs, once in this process.

    Forked processes inherit the results, which halves the cost of a short run.
    """
    for module in _MODULES:
        import_module(module)
    for api_key, api in APIS.items():
        if api.name in _APIS:
            for found in (request_class(api_key), response_class(api_key)):
                version = api.versions[-1]
                encoder_for(found, version)
                decoder_for(found, version)
    _judge_a_history()


def _judge_a_history() -> None:
    """Write, read and check a history without client operations: pyarrow loads parts late."""
    from quorumlog.chaos.checkers import check_history
    from quorumlog.chaos.history import NEMESIS, HistoryWriter, read_history

    with TemporaryDirectory() as directory:
        with HistoryWriter(Path(directory)) as history:
            history.append(NEMESIS, "info", "heal")
        check_history(read_history(directory))


REAL_SECONDS_MAX: Final = 600.0
_CHUNK_BYTES: Final = 1 << 16


class RunFailed(Exception):
    """A run gave no result: a bug in a node or in the simulation. The message has the seed."""


@dataclass(slots=True)
class _Child:
    place: int
    settings: NodesSettings
    pid: int
    directory: Path
    deadline_s: float
    received: bytearray


def run_forked(
    wanted: Sequence[NodesSettings], *, workers: int = 0, idle: Callable[[], None] = lambda: None
) -> Iterator[NodesResult | RunFailed]:
    """Yield the results in the order of `wanted`, with `workers` at a time; 0: one per core.

    `idle` is called repeatedly while runs are in progress. Closing the iterator kills all
    processes.
    """
    warm_up()
    count = min(workers or os.cpu_count() or 1, len(wanted))
    done: dict[int, NodesResult | RunFailed] = {}
    following, to_yield = 0, 0
    with selectors.DefaultSelector() as selector:
        try:
            while to_yield < len(wanted):
                while following < len(wanted) and len(selector.get_map()) < count:
                    _begin(following, wanted[following], selector)
                    following += 1
                for child, outcome in _ended(selector):
                    done[child.place] = outcome
                while to_yield in done:
                    yield done.pop(to_yield)
                    to_yield += 1
                idle()
        finally:
            for key in [*selector.get_map().values()]:
                _end(key, selector)


def run_one(settings: NodesSettings) -> NodesResult:
    """Return the result of one run in a process of its own. Raises RunFailed."""
    (outcome,) = run_forked([settings], workers=1)
    if isinstance(outcome, RunFailed):
        raise outcome
    return outcome


def _begin(place: int, settings: NodesSettings, selector: selectors.BaseSelector) -> None:
    directory = Path(settings.keep_in or tempfile.mkdtemp(prefix="quorumlog-simulated-"))
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(settings, directory, writing)
    os.close(writing)
    deadline_s = time.monotonic() + REAL_SECONDS_MAX
    child = _Child(place, settings, pid, directory, deadline_s, bytearray())
    selector.register(reading, selectors.EVENT_READ, child)


def _child(settings: NodesSettings, directory: Path, writing: int) -> None:
    """Run in the child process, write the result, and exit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    outcome: NodesResult | str
    try:
        from quorumlog.chaos.node_simulation.run import SimulatedRun

        outcome = SimulatedRun(settings, directory).run()
    except BaseException:  # noqa: BLE001 - the outermost frame of the process
        outcome = traceback.format_exc()
    try:
        with os.fdopen(writing, "wb") as file:
            pickle.dump(outcome, file)
        sys.stderr.flush()
    finally:
        os._exit(0)


def _ended(selector: selectors.BaseSelector) -> Iterator[tuple[_Child, NodesResult | RunFailed]]:
    """Read from the children's pipes; yield the children that have ended, with their outcomes."""
    for key, _ in selector.select(timeout=0.2):
        child: _Child = key.data
        if chunk := os.read(key.fd, _CHUNK_BYTES):
            child.received += chunk
            continue
        _end(key, selector)
        yield child, _outcome(child)
    for key in [*selector.get_map().values()]:
        if time.monotonic() > key.data.deadline_s:
            _end(key, selector)
            yield key.data, RunFailed(f"{_named(key.data)}: no end in {REAL_SECONDS_MAX:g} s")


def _outcome(child: _Child) -> NodesResult | RunFailed:
    if not child.received:
        return RunFailed(f"{_named(child)}: its process ended without a result")
    outcome = pickle.loads(child.received)  # noqa: S301 - our own child wrote it
    if isinstance(outcome, NodesResult):
        return outcome
    return RunFailed(f"{_named(child)}: {outcome}")


def _named(child: _Child) -> str:
    return f"seed {child.settings.schedule.seed}"


def _end(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
    """Kill and reap the process; remove its directory unless it is to be kept."""
    child: _Child = key.data
    selector.unregister(key.fileobj)
    os.close(key.fd)
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    if child.settings.keep_in is None:
        shutil.rmtree(child.directory, ignore_errors=True)
