"""A node of a temporary cluster ends with the process that started it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.node.parent import Parent


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
