"""The outermost frame of a node: arguments, configuration, signals, exit status.

Exit status: 0 the node stopped on a signal; 1 it cannot run here (a port in use, the directory of
another node, a failing disk); 64 the configuration is invalid; 70 an invariant did not hold, or an
unexpected error. The last line of the output gives the reason.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

from quorumlog.broker.controller_requests.lifecycle import RegistrationFailed
from quorumlog.invariants import InvariantViolation
from quorumlog.node import config as configuration
from quorumlog.node.config import NodeConfig
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.listeners import StartFailed
from quorumlog.node.lock import AlreadyRunning, hold
from quorumlog.node.node import Node
from quorumlog.node.parent import Parent
from quorumlog.node.progress import note_end, progress_file, report
from quorumlog.node.room import Room, StartEnded
from quorumlog.storage.errors import DiskExhausted, StorageError, lacks_room
from quorumlog.storage.io.checkpoints import LOCK_FILE
from quorumlog.tasks import Tasks, log_failure

MACOS_LIMIT: Final = 10_240  # its OPEN_MAX: it refuses higher soft limits, whatever the hard limit
EXIT_OK: Final = 0
EXIT_CANNOT_RUN: Final = 1
EXIT_CONFIG: Final = 64
EXIT_OUR_BUG: Final = 70
END_ROUNDS: Final = 5
END_ROUND_S: Final = 1.0

CANNOT_RUN: Final = (AlreadyRunning, StartFailed, RegistrationFailed, StorageError)
_logger: Final = logging.getLogger("quorumlog.node")
_locks: Final[dict[Path, TextIO]] = {}  # of this process; the kernel releases them when it ends


def main(arguments: Sequence[str], dependencies: NodeDependencies | None = None) -> int:
    """Run one node until a signal stops it; return the exit status.

    `dependencies` is for tests: a mutant of the chaos lab breaks one rule that way.
    """
    try:
        given = _parse(arguments)
        logging.basicConfig(
            level=given.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        values = configuration.read_properties(given.properties)
        values |= configuration.from_environment(os.environ)
        values |= dict(_name_and_value(text) for text in given.config)
        config = configuration.build(values)
        parent = _parent(given)
    except configuration.ConfigError as error:
        return _end(f"configuration: {error}", EXIT_CONFIG)
    if ignored := configuration.without_effect(values):
        _logger.warning(
            "these settings of Apache Kafka have no effect here: %s", ", ".join(ignored)
        )
    raise_open_files_limit()
    try:
        status = _run_node(config, dependencies or NodeDependencies(), given, parent)
        if given.pid_file in _locks:
            note_end(progress_file(given.pid_file), status)
        return status
    finally:
        parent.clean_up()


def _run_node(
    config: NodeConfig, dependencies: NodeDependencies, given: argparse.Namespace, parent: Parent
) -> int:
    """Lock the node's directories and run it; return the exit status."""
    try:
        return _run(lambda: _serve(config, dependencies, given, parent))
    except CANNOT_RUN as error:
        return _end(str(error), EXIT_CANNOT_RUN)
    except OSError as error:
        reason = error.strerror or str(error)
        return _end(f"{error.filename}: {reason}" if error.filename else reason, EXIT_CANNOT_RUN)
    except InvariantViolation as error:
        _logger.exception("an invariant does not hold")
        return _end(f"invariant violated: {error}", EXIT_OUR_BUG)
    except Exception as error:  # the outermost frame
        _logger.exception("unexpected")
        return _end(f"unexpected: {error!r}", EXIT_OUR_BUG)


async def _lock_directories(config: NodeConfig) -> list[Path]:
    """Lock every log directory; return the failed ones, never the metadata's directory.

    Raises AlreadyRunning, OSError; DiskExhausted: then it may be repeated.
    """
    refused = []
    for path in config.log_dirs:
        try:
            await _hold(path / LOCK_FILE)
        except OSError as error:
            if path == config.log_dir:
                raise
            _logger.error("cannot lock %s: %s", path, error)  # noqa: TRY400 - a disk's error, no bug
            refused.append(path)
    return refused


async def _hold(path: Path) -> None:
    """Lock a file until the process ends. Raises as `_lock_directories` does."""
    if path not in _locks:
        try:
            _locks[path] = hold(path)
        except OSError as error:
            if lacks_room(error):
                raise DiskExhausted(f"cannot make {path}: {error.strerror}") from error
            raise


class _Parser(argparse.ArgumentParser):
    """Treats invalid arguments as an invalid configuration: the same exit status."""

    def error(self, message: str) -> NoReturn:
        raise configuration.ConfigError(message)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="python -m quorumlog.node", description="Run one node.")
    parser.add_argument("properties", type=Path, help="the node's properties file")
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--ready-fd", type=int, help="write one JSON line here when ready")
    parser.add_argument("--pid-file", type=Path, help="lock this file and write our id into it")
    parser.add_argument("--parent-fd", type=int, help="stop when the other end of this pipe closes")
    parser.add_argument(
        "--temporary-directory", type=Path, help="remove this then: it holds the whole cluster"
    )
    levels = ("debug", "info", "warning", "error", "critical")
    parser.add_argument("--log-level", default="info", choices=levels)
    return parser.parse_args(arguments)


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise configuration.ConfigError(f"--config {text}: write it as name=value")
    return name, value


def _parent(given: argparse.Namespace) -> Parent:
    try:
        return Parent(
            given.parent_fd, pid_file=given.pid_file, temporary_directory=given.temporary_directory
        )
    except OSError as error:
        raise configuration.ConfigError(f"--parent-fd {given.parent_fd}: {error}") from error


def _end(reason: str, status: int) -> int:
    with contextlib.suppress(OSError):  # the output may be a file on the disk that is full
        sys.stderr.write(f"quorumlog: {reason}\n")
    return status


def _run(serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run on uvloop where it is installed: it saves about a tenth of the broker's CPU."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status: int = runner.run(serve())
        return status


async def _serve(
    config: NodeConfig, dependencies: NodeDependencies, given: argparse.Namespace, parent: Parent
) -> int:
    stopping, room = asyncio.Event(), Room()
    node: Node | None = None

    def stop() -> None:
        stopping.set()
        room.end()

    def progress() -> str:
        return room.obstacles.below("") if node is None else node.progress()

    async def is_awaited() -> None:  # by another process: until the node is ready, and for its stop
        if node is not None and node.ready.is_set():
            await stopping.wait()

    _call_at_end(stop, parent)
    reports = Tasks(log_failure(_logger, "reporting the node's progress"))
    try:
        # Held until the process ends: this lock shows `up` that the node runs, others guard data.
        if given.pid_file is not None:
            await room.wait_for(partial(_hold, given.pid_file))
            reports.start(report(progress_file(given.pid_file), progress, is_awaited))
        refused = await room.wait_for(partial(_lock_directories, config))
        node = await Node.made(config, dependencies, room, refused)
        _watch_loop(node)
        await node.start()
    except StartEnded as end:
        _logger.warning("%s", end)
        return EXIT_OK
    gc.freeze()  # all objects so far live as long as the process
    ready = asyncio.create_task(_report_ready(node, given.ready_fd))
    stopped = asyncio.create_task(stopping.wait())
    try:
        waiting: set[asyncio.Future[Any]] = {stopped, node.fatal}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
        stopped.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ready
        if not node.fatal.done():
            await node.stop()
        await reports.stop()
        if node.fatal.done():
            await end_tasks()
    if node.fatal.done():
        node.fatal.result()  # raises the error that ended it, also a late StartFailed
    return EXIT_OK


def _call_at_end(stop: Callable[[], None], parent: Parent) -> None:
    """Call `stop` when a signal is to end this process, and when its parent ends."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    parent.watch(stop)


def _watch_loop(node: Node) -> None:
    """Let the node handle errors of callbacks; and with TLS SIGHUP, which ends other processes."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(partial(end_if_it_is_our_bug, node.fail))
    if node.has_tls:
        loop.add_signal_handler(signal.SIGHUP, node.reload_tls)


async def end_tasks() -> None:
    """Cancel all tasks of a failed node, also those that start meanwhile; `asyncio.run` does not.

    Otherwise the loop would be closed with pending tasks, and log that behind the error's reason.
    """
    for _ in range(END_ROUNDS):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=END_ROUND_S)


def end_if_it_is_our_bug(
    fail: Callable[[BaseException], None], loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Log the error of a callback or an unawaited task; an InvariantViolation ends the node."""
    loop.default_exception_handler(context)
    error = context.get("exception")
    if isinstance(error, InvariantViolation):
        fail(error)


async def _report_ready(node: Node, ready_fd: int | None) -> None:
    await node.ready.wait()
    _logger.info("ready")
    if ready_fd is not None:
        line = json.dumps({"node_id": node.config.node_id, "pid": os.getpid()})
        try:
            os.write(ready_fd, line.encode() + b"\n")
            os.close(ready_fd)
        except OSError as error:  # the starter does not wait any more: the node serves all the same
            _logger.warning("the readiness pipe is closed: %s", error.strerror)


def raise_open_files_limit() -> int:
    """Raise this process's soft limit of open files to the hard limit; return the new limit.

    Systems set the soft limit low (1024, macOS 256) for programs that use `select`. If the limit
    cannot be raised, that is logged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_LIMIT):
        if not _is_more(wanted, soft):
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _logger.warning("open files: %d, and not more (%d): %s", soft, wanted, error)
        else:
            return wanted
    return soft


def _is_more(wanted: int, soft: int) -> bool:
    if soft == resource.RLIM_INFINITY:
        return False
    return wanted == resource.RLIM_INFINITY or wanted > soft
