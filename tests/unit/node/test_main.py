"""How a node's process ends: its last line, its exit status; its open files, and its parent."""

import asyncio
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO, cast

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.node import main as node_main
from quorumlog.node.main import MACOS_LIMIT, raise_open_files_limit
from quorumlog.node.node import Node
from quorumlog.node.parent import Parent
from quorumlog.storage.errors import StorageError


@pytest.fixture(autouse=True)
def locks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let go of what a node holds until its process ends: here that is the tests' process."""
    locks: dict[Path, TextIO] = {}
    monkeypatch.setattr(node_main, "_locks", locks)
    yield
    for lock in locks.values():
        lock.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StorageError("/data: cannot flush"), (1, "quorumlog: /data: cannot flush")),
        (InvariantViolation("1: it holds"), (70, "quorumlog: invariant violated: 1: it holds")),
        (KeyError("k"), (70, "quorumlog: unexpected: KeyError('k')")),
    ],
)
def test_the_last_line_says_why_it_ends(
    error: Exception,
    expected: tuple[int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fails(*_: object) -> int:
        raise error

    properties = tmp_path / "node.properties"
    properties.write_text(
        "node.id=1\ncluster.id=c\nlisteners=127.0.0.1:1\ncontrol.listener=127.0.0.1:1\n"
        f"controller.quorum.voters=1@127.0.0.1:1\nlog.dirs={tmp_path}\n"
    )
    monkeypatch.setattr(node_main, "_serve", fails)
    raised: list[bool] = []
    monkeypatch.setattr(node_main, "raise_open_files_limit", lambda: raised.append(True))
    status = node_main.main([str(properties)])
    assert raised == [True]
    assert (status, capsys.readouterr().err.splitlines()[-1]) == expected


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: properties"),
        (["p", "--log-level", "loud"], "argument --log-level: invalid choice: 'loud'"),
        (["p", "--ready-fd", "x"], "argument --ready-fd: invalid int value: 'x'"),
        (["p"], "p: No such file or directory"),
    ],
)
def test_arguments_that_make_no_sense_are_a_configuration_that_makes_none(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node_main.main(arguments) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"quorumlog: configuration: {reason}")


async def test_nobody_who_waits_for_readiness_is_no_reason_to_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who started the node gave up or died: the pipe is broken when the node is ready."""

    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    node = SimpleNamespace(ready=asyncio.Event(), config=SimpleNamespace(node_id=1))
    node.ready.set()
    await node_main._report_ready(cast("Node", node), write_fd)
    os.close(write_fd)
    assert "the readiness pipe is closed" in caplog.text


async def test_a_broken_rule_in_a_callback_ends_the_node() -> None:
    """The event loop only logs what a callback raises."""

    async def story() -> list[BaseException]:
        ended: list[BaseException] = []

        def breaks(error: Exception) -> None:
            raise error

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(partial(node_main.end_if_it_is_our_bug, ended.append))
        for error in (ValueError("a peer's"), InvariantViolation("1: it holds")):
            loop.call_soon(breaks, error)
        await asyncio.sleep(0)
        return ended

    assert [str(error) for error in await story()] == ["1: it holds"]


@pytest.mark.jumping_time
async def test_what_a_task_starts_on_its_way_out_is_ended_too() -> None:
    ended: list[str] = []

    async def run(name: str, following: str | None) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(name)
            if following is not None:
                started.append(asyncio.create_task(run(following, None)))

    started = [asyncio.create_task(run("first", "second"))]
    await asyncio.sleep(0)
    await node_main.end_tasks()
    assert ended == ["first", "second"]
    assert [task.cancelled() for task in started] == [True, True]


# --- the limit of open files is raised as far as the system allows ---


PROGRAM = """
import resource
from quorumlog.node.main import raise_open_files_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
assert raise_open_files_limit() == hard
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_a_node_may_open_as_many_files_as_the_system_allows() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


@pytest.mark.parametrize(
    ("limits", "refused_above", "expected"),
    [
        ((1024, 4096), 4096, 4096),
        ((4096, 4096), 4096, 4096),
        ((256, resource.RLIM_INFINITY), MACOS_LIMIT, MACOS_LIMIT),
        ((256, resource.RLIM_INFINITY), 256, 256),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 0, resource.RLIM_INFINITY),
    ],
)
def test_a_limit_that_is_refused_stays(
    limits: tuple[int, int],
    refused_above: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def set_limit(_which: int, wanted_limits: tuple[int, int]) -> None:
        wanted = wanted_limits[0]
        if wanted == resource.RLIM_INFINITY or wanted > refused_above:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    with caplog.at_level(logging.WARNING):
        assert raise_open_files_limit() == expected


# --- a node of a temporary cluster ends with the process that started it ---


@pytest.fixture
def pipe() -> Iterator[tuple[int, list[int]]]:
    """A pipe: its read end, and the write end in a list that a test may empty by closing it."""
    read_fd, write_fd = os.pipe()
    write = [write_fd]
    yield read_fd, write
    for descriptor in (read_fd, *write):
        os.close(descriptor)


Pipe = tuple[int, list[int]]


def test_a_node_without_a_parent_depends_on_no_process(tmp_path: Path) -> None:
    parent = Parent(None, temporary_directory=tmp_path)
    parent.watch(lambda: None)  # needs no event loop
    parent.clean_up()
    assert not parent.has_ended
    assert tmp_path.exists()


async def test_the_end_of_the_parent_is_told_once(pipe: Pipe) -> None:
    read_fd, write = pipe

    parent, told = Parent(read_fd), asyncio.Queue[str]()
    parent.watch(lambda: told.put_nowait("ended"))
    assert not parent.has_ended
    os.close(write.pop())
    assert await told.get() == "ended"
    assert parent.has_ended
    await asyncio.sleep(0)
    assert told.empty()


def test_a_temporary_directory_goes_with_the_parent_and_not_before(
    pipe: Pipe, tmp_path: Path
) -> None:
    read_fd, write = pipe
    directory = tmp_path / "quorumlog-temporary-1"
    (directory / "node-1").mkdir(parents=True)
    parent = Parent(read_fd, pid_file=directory / "node-1/node.pid", temporary_directory=directory)
    parent.clean_up()
    assert directory.exists()
    os.close(write.pop())
    parent.clean_up()
    assert not directory.exists()
    parent.clean_up()  # another node was faster


def test_a_sibling_that_has_ended_is_not_signalled(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process id may be another process's by now: no lock, no signal."""
    read_fd, write = pipe
    for node_id in (1, 2):
        (tmp_path / f"node-{node_id}").mkdir()
        (tmp_path / f"node-{node_id}/node.pid").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("signalled"))
    os.close(write.pop())
    Parent(read_fd, pid_file=tmp_path / "node-1/node.pid").clean_up()
