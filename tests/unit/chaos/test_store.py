"""The store of runs and its server: what is listed, what is shown, what is never served."""

import io
import json
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quorumlog.chaos.store.runs import find_run, find_runs, matching
from quorumlog.chaos.store.server import StoreServer

INVALID: dict[str, Any] = {
    "valid": False,
    "operations": 12,
    "anomalies": {
        "lost-write": {"count": 3, "severity": "invalid"},
        "poll-skip": {"count": 1, "severity": "allowed"},
    },
    "unknown_because": [],
}


def put_run(directory: Path, verdict: object = None, **meta: object) -> Path:
    directory.mkdir(parents=True)
    (directory / "meta.json").write_text(json.dumps(meta))
    (directory / "history.jsonl").write_text("{}\n")
    if verdict is not None:
        (directory / "verdict.json").write_text(json.dumps(verdict))
    return directory


@asynccontextmanager
async def served(store: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    server = StoreServer(store, host="127.0.0.1", port=0)
    address = await server.start()
    async with aiohttp.ClientSession() as session:
        yield session, address.rstrip("/")
    await server.stop()


def test_runs_are_found_below_the_store_with_their_verdicts(tmp_path: Path) -> None:
    put_run(tmp_path / "one", INVALID, seed=7)
    put_run(tmp_path / "tests" / "two", {"valid": "unknown", "unknown_because": ["no send"]})
    put_run(tmp_path / "three")
    (tmp_path / "empty").mkdir()
    states = {run.name: run.state for run in find_runs(tmp_path)}
    assert states == {"one": "invalid", "tests/two": "unknown", "three": "not judged"}
    assert {run.name: run.broken for run in find_runs(tmp_path)}["one"] == {"lost-write": 3}


def test_a_run_is_a_store_of_one(tmp_path: Path) -> None:
    put_run(tmp_path / "one", {"valid": True})
    assert [run.name for run in find_runs(tmp_path / "one")] == ["."]
    assert find_run(tmp_path / "one", ".") is not None


def test_runs_are_chosen_by_verdict_and_by_words(tmp_path: Path) -> None:
    put_run(tmp_path / "one", INVALID, faults=["pause_kill"], seed=7)
    put_run(tmp_path / "two", {"valid": True}, faults=["kill"])
    runs = find_runs(tmp_path)
    assert [run.name for run in matching(runs, state="valid", text="")] == ["two"]
    assert [run.name for run in matching(runs, state="", text="PAUSE lost")] == ["one"]
    assert matching(runs, state="valid", text="pause") == []


def test_a_damaged_file_is_told_and_hides_no_run(tmp_path: Path) -> None:
    directory = put_run(tmp_path / "one", [1])
    (directory / "meta.json").write_text("{")
    (run,) = find_runs(tmp_path)
    assert run.state == "not judged"
    assert "meta.json" in run.unreadable


@pytest.mark.parametrize("name", ["..", "../other", "one/../..", "absent", "one/cluster"])
def test_only_runs_of_the_store_have_a_name(tmp_path: Path, name: str) -> None:
    put_run(tmp_path / "store" / "one", INVALID)
    put_run(tmp_path / "other", INVALID)
    assert find_run(tmp_path / "store", name) is None


async def test_a_browser_sees_the_list_the_run_and_its_files(tmp_path: Path) -> None:
    directory = put_run(tmp_path / "one", INVALID, command="quorumlog chaos run --seed 7")
    log = directory / "cluster" / "1" / "node.log"
    log.parent.mkdir(parents=True)
    log.write_text("started\n")
    async with served(tmp_path) as (session, address):
        shown = await (await session.get(f"{address}/?state=invalid&text=one")).text()
        assert "1 of 1 runs" in shown
        assert "lost-write x3" in shown
        page = await (await session.get(f"{address}/runs/one")).text()
        assert "quorumlog chaos run --seed 7" in page
        text = await session.get(f"{address}/runs/one/files/cluster/1/node.log")
        assert await text.text() == "started\n"
        assert text.content_type == "text/plain"
        archive = await (await session.get(f"{address}/runs/one/zip")).read()
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        assert "one/cluster/1/node.log" in packed.namelist()


async def test_what_a_run_says_of_itself_is_escaped(tmp_path: Path) -> None:
    put_run(tmp_path / "<b>run", INVALID, command="<script>alert(1)</script>")
    async with served(tmp_path) as (session, address):
        response = await session.get(f"{address}/runs/%3Cb%3Erun")
        page = await response.text()
    assert "<script>" not in page
    assert "<b>run" not in page
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]


async def test_nothing_else_is_served(tmp_path: Path) -> None:
    put_run(tmp_path / "one", INVALID)
    (tmp_path / "one" / "secret").write_text("x")
    (tmp_path / "outside").write_text("x")
    async with served(tmp_path) as (session, address):
        for path in ("/runs/two", "/runs/one/files/secret", "/runs/one/files/..%2F..%2Foutside"):
            response = await session.get(address + path)
            assert response.status == 404


def test_a_store_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="no such directory"):
        StoreServer(tmp_path / "absent", host="127.0.0.1", port=0)
