"""The store of runs and its server, the figures of a run, its load, lags and states."""

import io
import json
import zipfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quorumlog.chaos.report.plots import lag_lines, unseen_lines
from quorumlog.chaos.report.series import run_series
from quorumlog.chaos.report.state_plot import state_plot
from quorumlog.chaos.run.cluster_states import (
    STATES_FILE,
    ClusterState,
    PartitionState,
    read_states,
)
from quorumlog.chaos.run.figures import LoadMeter, OfferedLoad, figures
from quorumlog.chaos.store.runs import find_run, find_runs, matching
from quorumlog.chaos.store.server import StoreServer
from tests.support.chaos.hand_made_histories import History

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


def test_a_workload_that_sends_is_told_by_sends_and_reads() -> None:
    messages = Counter(
        {
            ("invoke", "send"): 9,
            ("ok", "send"): 6,
            ("info", "send"): 2,
            ("fail", "send"): 1,
            ("ok", "poll"): 5,
            ("ok", "final_poll"): 7,
            ("invoke", "commit"): 3,
        }
    )
    assert figures(messages) == "6 sends acknowledged, 2 unknown, 1 failed; 12 records read"


def test_a_workload_that_does_not_send_is_told_by_each_kind_of_operation() -> None:
    messages = {
        ("invoke", "delete"): 4,
        ("ok", "delete"): 3,
        ("info", "delete"): 1,
        ("invoke", "create"): 2,
        ("ok", "create"): 2,
    }
    told = "2 create done, 0 unknown, 0 failed; 3 delete done, 1 unknown, 0 failed"
    assert figures(messages) == told
    assert figures({}) == "0 sends acknowledged, 0 unknown, 0 failed; 0 records read"


def load(offered: int, acknowledged: int) -> OfferedLoad:
    return OfferedLoad(offered=offered, acknowledged=acknowledged, silent_s=0.0)


def test_the_longest_silence_is_between_two_observations_with_news() -> None:
    meter = LoadMeter(600.0, now_s=10.0)
    for now_s, acknowledged in ((10.2, 0), (11.0, 90), (11.2, 98), (28.0, 98), (28.2, 98)):
        meter.observe(now_s, acknowledged)
    measured = meter.load()
    assert measured.silent_s == pytest.approx(17.0)
    assert (measured.offered, measured.acknowledged, measured.percent) == (10_920, 98, 0)
    assert measured.text() == (
        "the cluster acknowledged 0 % of the offered operations; "
        "the longest time without an acknowledgement was 17.0 s"
    )


@pytest.mark.parametrize(
    ("offered", "acknowledged", "percent"),
    [(1000, 999, 99), (1000, 1000, 100), (1000, 1003, 100), (0, 0, 0), (3, 1, 33)],
)
def test_nearly_all_is_not_all(offered: int, acknowledged: int, percent: int) -> None:
    assert load(offered, acknowledged).percent == percent


def test_a_load_below_the_least_is_a_doubt_and_any_load_is_read_again() -> None:
    assert load(1000, 500).doubt(50) == ""
    assert load(1000, 0).doubt(0) == ""
    assert load(1000, 499).doubt(50) == (
        "the cluster acknowledged 49 % of the offered operations, and at least 50 % are required"
    )
    known = OfferedLoad(offered=10, acknowledged=9, silent_s=0.25)
    assert OfferedLoad.from_json(known.as_json()) == OfferedLoad(
        offered=10, acknowledged=9, silent_s=0.2
    )
    others: list[object] = [None, [], {}, {"offered": 1}, {**known.as_json(), "silent_s": "long"}]
    for other in others:
        assert OfferedLoad.from_json(other) is None


S = 1_000_000_000


def a_record_that_is_read_late() -> History:
    """Acknowledged at 1 s; reader 1 has it at 2 s, reader 2 at 7 s; the load ends at 9 s."""
    history = History().send(5, 0, at=(0, S))
    history.poll((0, 5), process=1, at=(S, 2 * S)).poll((0, 5), process=2, at=(6 * S, 7 * S))
    history.poll(process=1, at=(8 * S, 9 * S))
    return history.final((0, 5), end=1)


def test_the_lag_is_the_age_of_the_oldest_unread_record() -> None:
    lines = lag_lines(run_series(a_record_that_is_read_late().table()), bins=20, readers_max=5)
    assert [line.label for line in lines] == ["reader 2", "reader 1"]
    ages = dict(lines[0].points)
    assert max(ages.values()) == max(age for moment, age in ages.items() if moment < 7)
    assert 5.0 < max(ages.values()) <= 6.0
    assert all(age == 0 for moment, age in ages.items() if moment > 7)
    assert max(age for _, age in lines[1].points) <= 1.0


def test_a_reader_that_reads_nothing_falls_behind_until_the_load_ends() -> None:
    history = History().send(5, 0, at=(0, S)).poll(process=1, at=(S, 2 * S))
    history.send(6, 1, at=(8 * S, 9 * S)).final((0, 5), (1, 6), end=2)
    (line,) = lag_lines(run_series(history.table()), bins=40, readers_max=5)
    assert 7.0 < line.points[-1][1] <= 8.0


def test_unseen_records_are_counted_until_they_are_read() -> None:
    history = a_record_that_is_read_late().send(7, 1, at=(9 * S, 10 * S))
    ordinary, any_reader = unseen_lines(run_series(history.table()), bins=50)
    counts = dict(ordinary.points)
    assert {count for moment, count in counts.items() if 1.2 < moment < 1.8} == {1}
    assert {count for moment, count in counts.items() if 2.2 < moment < 8} == {0}
    assert any_reader.points[-1][1] == ordinary.points[-1][1] == 1  # 7 was never read


def state(seconds: float, leader: int, isr: tuple[int, ...], epoch: int = 0) -> ClusterState:
    one = PartitionState(leader=leader, epoch=epoch, isr=isr)
    return ClusterState(time_ns=round(seconds * 1e9), controller=1, partitions={"t-0": one})


def test_states_are_read_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / STATES_FILE).write_text(
        '{"time_ns": 5, "controller": 2, "partitions": '
        '{"t-0": {"leader": 1, "epoch": 3, "isr": [1, 2]}}}\n'
        '{"time_ns": 9, "error": "no broker answered"}\n{"time_ns": 1'
    )
    first, second = read_states(tmp_path)
    assert first.partitions == {"t-0": PartitionState(leader=1, epoch=3, isr=(1, 2))}
    assert (first.controller, second.controller, second.error) == (2, -1, "no broker answered")


def test_a_run_that_was_not_watched_has_no_states(tmp_path: Path) -> None:
    assert read_states(tmp_path) == []
    assert state_plot([], [], 10.0) == ""


@pytest.mark.parametrize("line", ["[]", "{}", '{"time_ns": 1, "partitions": {"t-0": {}}}', "x"])
def test_a_line_that_is_no_state_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / STATES_FILE).write_text(line + "\n")
    with pytest.raises(ValueError, match=r"states\.jsonl:1: not a state"):
        read_states(tmp_path)


def test_the_plot_shows_leaders_short_isrs_and_gaps() -> None:
    states = [state(0, 1, (1, 2, 3)), state(2, 1, (1, 2)), state(4, -1, (1,)), state(6, 2, (2,), 1)]
    svg = state_plot(states, [("kill 1", 4.0, 6.0)], 10.0)
    assert "1, e0 [1,2,3], 0.00 s to 2.00 s" in svg
    assert 'class="node1 short"' in svg
    assert "2, e1 [2], 6.00 s to 10.00 s" in svg
    assert '4.00 s to 6.00 s</title><rect class="node' not in svg  # no leader: a gap
    states = [state(0, 1, (1,)), ClusterState(time_ns=2 * 10**9, partitions={}, error="no answer")]
    assert "0.00 s to 2.00 s" in state_plot(states, [], 10.0)
    assert "to 10.00 s" not in state_plot(states, [], 10.0)
