"""How a node's process ends: its last line, its exit status, and errors that no rule foresaw."""

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO, cast

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.node import main as node_main
from quorumlog.node.node import Node
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
