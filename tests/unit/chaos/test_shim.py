"""The library that breaks the disk and the clock of a process, in a process of its own."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.back_ends.back_end import BackEndFailed
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.faults.disks import CALLS
from quorumlog.chaos.shim import shim as shims
from quorumlog.chaos.shim.orders import Orders
from quorumlog.chaos.shim.shim import Shim, ShimFailed
from quorumlog.cluster import LocalCluster

if why_not := shims.why_not():
    pytest.skip(why_not, allow_module_level=True)

PROGRAM = """
import errno, json, os, sys, time

def outcome(act):
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno]

root, other = sys.argv[1:]
ours = os.open(f"{root}/ours", os.O_RDWR | os.O_CREAT)
foreign = os.open(f"{other}/foreign", os.O_RDWR | os.O_CREAT)
for _ in sys.stdin:
    before = time.monotonic()
    seen = {
        "writev": outcome(lambda: os.writev(ours, [b"abc", b"defg"])),
        "write": outcome(lambda: os.write(ours, b"abcd")),
        "read": outcome(lambda: len(os.pread(ours, 3, 0))),
        "fdatasync": outcome(lambda: os.fdatasync(ours)),
        "create": outcome(lambda: os.close(os.open(f"{root}/new", os.O_RDWR | os.O_CREAT))),
        "rename": outcome(lambda: os.rename(f"{root}/new", f"{root}/newer")),
        "foreign": outcome(lambda: (os.write(foreign, b"ab"), os.fdatasync(foreign))[0]),
        "took_s": time.monotonic() - before,
        "wall_s": time.time(),
    }
    outcome(lambda: os.unlink(f"{root}/newer"))
    print(json.dumps(seen), flush=True)
"""
HEALTHY = {
    "writev": 7,
    "write": 4,
    "read": 3,
    "fdatasync": None,
    "create": None,
    "rename": None,
    "foreign": 2,
}


class Subject:
    """A process behind the library; `look` says what becomes of its calls now."""

    def __init__(self, process: "subprocess.Popen[str]", orders: Orders) -> None:
        self._process, self.orders = process, orders
        self.took_s = self.ahead_s = 0.0

    def look(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        seen: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.took_s, self.ahead_s = seen.pop("took_s"), seen.pop("wall_s") - time.time()
        return seen


@pytest.fixture
def name() -> str:
    return "plain"


@pytest.fixture
def subject(tmp_path: Path, name: str) -> Iterator[Subject]:
    directory = tmp_path / name
    root, other = directory / "root", directory / "root-of-another"
    root.mkdir(parents=True)
    other.mkdir()
    with Shim(directory / "shim", {1: root}) as shim:
        command = [sys.executable, "-S", "-c", PROGRAM, str(root), str(other)]
        with subprocess.Popen(
            command,
            env=dict(shim.environment(1)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield Subject(process, shim.orders[1])


def test_a_process_obeys_its_orders_from_the_next_call_on(subject: Subject) -> None:
    orders = subject.orders
    assert subject.look() == HEALTHY
    orders.fill(9)
    full = {"writev": 7, "write": 2, "create": "ENOSPC", "rename": "ENOENT"}
    assert subject.look() == {**HEALTHY, **full}
    assert subject.look() == {**HEALTHY, **full, "writev": "ENOSPC", "write": "ENOSPC"}
    orders.fill(5)
    assert subject.look()["writev"] == 3, "a part of the first piece fits"
    orders.free()
    assert subject.look() == HEALTHY
    assert orders.hit == 8
    orders.fail(CALLS["reads"])
    assert subject.look() == {**HEALTHY, "read": "EIO"}
    orders.fail(CALLS["syncs"])
    assert subject.look() == {**HEALTHY, "fdatasync": "EIO"}
    orders.fail(CALLS["writes"])
    assert subject.look() == {**HEALTHY, "writev": "EIO", "write": "EIO", "fdatasync": "EIO"}
    orders.fail(CALLS["all"])
    assert subject.look() == {**dict.fromkeys(HEALTHY, "EIO"), "foreign": 2}
    orders.fail(0)
    assert subject.look() == HEALTHY
    hit = orders.hit
    orders.slow(2_000)
    assert subject.look() == HEALTHY
    assert orders.hit == hit + 1, "that of the file below the root"
    orders.slow(0)
    for step_s in (300, -300, 0):
        orders.step_clock(step_s * 1_000_000_000)
        assert subject.look() == HEALTHY
        assert abs(subject.ahead_s - step_s) < 60


@pytest.mark.parametrize("name", ["a b", "c:d"])
def test_a_directory_may_have_a_space_or_a_colon_in_its_name(subject: Subject) -> None:
    assert subject.look() == HEALTHY
    assert subject.orders.are_read
    subject.orders.fail(CALLS["syncs"])
    assert subject.look() == {**HEALTHY, "fdatasync": "EIO"}


def test_the_library_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with Shim(tmp_path / "shim", {}):
        assert [*scratch.glob("*/*.so")]
    assert not [*scratch.iterdir()]


def test_a_temporary_directory_that_cannot_be_preloaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "a b"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with pytest.raises(ShimFailed, match="set TMPDIR"), Shim(tmp_path / "shim", {}):
        pass
    assert not [*scratch.iterdir()]


async def test_an_order_to_a_process_without_the_library_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path / "cluster", nodes=1)
    with Shim(tmp_path / "shim", {1: tmp_path}) as shim:
        back_end = LocalProcesses(cluster, shim=shim)
        await back_end.perform("fill_disk", (1,), 0)  # the next process will obey
        monkeypatch.setattr(cluster, "pid", lambda _: 1)
        with pytest.raises(BackEndFailed, match=r"node 1 has not loaded the shim: fill_disk"):
            await back_end.perform("fill_disk", (1,), 0)
        await back_end.perform("free_disk", (1,))
        program = [sys.executable, "-S", "-c", ""]
        subprocess.run(program, env=dict(shim.environment(1)), check=True)
        await back_end.perform("fill_disk", (1,), 0)
        monkeypatch.setattr(cluster, "pid", lambda _: None)
        monkeypatch.setattr(cluster, "start_node", lambda *_, **__: None)
        await back_end.perform("start", (1,))  # without the library
        monkeypatch.setattr(cluster, "pid", lambda _: 2)
        with pytest.raises(BackEndFailed, match="node 1 has not loaded the shim"):
            await back_end.perform("fill_disk", (1,), 0)


def test_a_refusing_or_missing_compiler_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("int wrong(void) { return nothing; }\n")
    monkeypatch.setattr(shims, "_SOURCE", source)
    with pytest.raises(ShimFailed, match=r"cannot compile wrong\.c: .*"), Shim(tmp_path, {}):
        pass
    monkeypatch.setattr(shims, "_COMPILERS", ("no-such-compiler",))
    assert shims.why_not() == "it needs a C compiler: no-such-compiler"
    with pytest.raises(ShimFailed, match="cannot be broken here"), Shim(tmp_path, {}):
        pass
