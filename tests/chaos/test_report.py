"""The report of a run: what it shows of good and bad runs, and what it never does."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.history import Message, read_history, write_meta
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.report import write_report
from quorumlog.chaos.report.plots import latency_plot, rate_plot
from quorumlog.chaos.report.series import key_points, run_series
from quorumlog.chaos.run.figures import OfferedLoad
from quorumlog.chaos.run.run_settings import RunSettings, RunSummary, meta_at_end, meta_at_start
from quorumlog.chaos.schedule import Schedule
from quorumlog.charts.chart import number, ticks
from tests.support.chaos.hand_made_histories import History, rows_of
from tests.support.chaos.random_histories import good, lose


def report_of(table: pa.Table, directory: Path, model: str = "kafka_log") -> str:
    pq.write_table(table, directory / "history.parquet")
    verdict = check_history(read_history(directory), model)
    return write_report(directory, verdict, directory / "report.html").read_text()


def test_a_bad_run_shows_its_witnesses_and_its_key(tmp_path: Path) -> None:
    sketch = good(5)
    lose(sketch)
    page = report_of(table_of(rows_of(sketch.ops)), tmp_path)
    assert "<h1>Invalid</h1>" in page
    banner = page[: page.index("</header>")]
    assert re.search(r"<li>1 x lost-write\. .* First: value \d+ at \d+\.\d+ s, while no", banner)
    assert "int-poll-skip" not in banner  # it follows from the loss
    assert "<b>lost-write</b> <em>1</em>" in page
    assert re.search("Offsets of [ab]-[01] over time", page)
    assert page.count("<svg") == page.count("</svg>") == 6


def test_what_has_no_partition_is_told_without_a_plot_of_offsets(tmp_path: Path) -> None:
    history = History().sent(1).nemesis("node-ended", "2", details="status 70").final((0, 1), end=1)
    page = report_of(history.table(), tmp_path)
    assert "<h1>Invalid</h1>" in page
    assert "<b>node-ended</b> <em>1</em> A process ended that the lab had not killed." in page
    assert "no violated guarantee was found" in page
    assert "<h3>node 2: status 70</h3></details>" in page
    assert "Offsets of node" not in page
    assert page.count("<svg") == page.count("</svg>") == 5
    history = History().sent(1, 2).poll((0, 1), (1, 2))
    history.op(1, "poll", [], "fail", error="OFFSET_OUT_OF_RANGE: it is gone")
    page = report_of(history.final((0, 1), (1, 2), end=2).table(), tmp_path)
    assert "truncated-read" in page
    assert "Offsets of" not in page


def test_a_good_run_shows_its_plots_and_fetches_nothing(tmp_path: Path) -> None:
    page = report_of(table_of(rows_of(good(5).ops)), tmp_path)
    assert "<h1>Valid</h1>" in page
    assert page.count("<svg") == 5
    page = report_of(History().sent(1).final((0, 1), end=1).table(), tmp_path)
    assert not re.search(r"https?://|src=|href=|@import|url\(", page)


def test_operations_of_another_model_are_in_the_plots_that_need_no_offsets(tmp_path: Path) -> None:
    history = History().sent(1).op(1, "join", []).poll((0, 1), f="group_poll").final((0, 1), end=1)
    page = report_of(history.table(), tmp_path, "group_log")
    assert page.count("<svg") == page.count("</svg>") == 4  # none of how long polls took


def test_a_reader_that_is_not_at_the_end_yet_is_not_drawn_as_a_failure(tmp_path: Path) -> None:
    history = History().sent(1)
    history.op(9, "final_end", [("x-0", 1, 0)], "fail").final((0, 1), end=1)
    page = report_of(history.table(), tmp_path)
    assert "<h1>Valid</h1>" in page
    assert '<rect class="cell fail"' not in page
    history.op(5, "send", [("x-0", -1, 7)], "fail")
    assert '<rect class="cell fail"' in report_of(history.table(), tmp_path)


def test_an_empty_history_has_a_report_too(tmp_path: Path) -> None:
    page = report_of(History().table(), tmp_path)
    assert "<h1>Unknown</h1>" in page
    assert "<li>Unknown: the history is empty</li>" in page
    assert "<svg" not in page


def test_what_explains_a_run_is_in_words_and_its_load_is_under_the_verdict(tmp_path: Path) -> None:
    history = History().sent(1).nemesis("kill", "1").nemesis("start", "1").final((0, 1), end=1)
    load = {"offered": 10_800, "acknowledged": 98, "silent_s": 17.0}
    meta = {"started_wall_ns": 1, "duration_s": 15.0, "config": {"num.io.threads": "4"}}
    write_meta(tmp_path, {**meta, "load": load, "faults_carried_out": 7, "dense": True})
    page = report_of(history.table(), tmp_path)
    banner, _, rest = page.partition("</header>")
    assert "The cluster acknowledged 0 % of the offered operations; the longest time" in banner
    assert "<th>settings of the nodes (--config)</th><td>num.io.threads=4</td>" in rest
    assert "<th>every offset holds a record</th><td>yes</td>" in rest
    assert "<b>7</b><span>faults (1 step)</span>" in rest
    assert not re.search(r"<th>\w*_\w*</th>", rest)
    assert "wall_ns" not in page


def test_every_name_that_a_run_writes_into_its_meta_has_words(tmp_path: Path) -> None:
    settings = RunSettings(out=tmp_path, command=("quorumlog",))
    load = OfferedLoad(offered=1, acknowledged=1, silent_s=0.0)
    summary = RunSummary(
        figures="",
        sends_ok=1,
        faults=1,
        not_met=("kill",),
        reads_complete=True,
        seconds=1.0,
        load=load,
        in_faults=(120, 60),
        topic_settings={"retention.ms": "1"},
    )
    write_meta(
        tmp_path, meta_at_end(meta_at_start(settings, Schedule(seed=1, duration_us=1)), summary)
    )
    page = report_of(History().sent(1).final((0, 1), end=1).table(), tmp_path)
    names = re.findall(r"<th>([^<]*)</th><td>", page)
    assert len(names) > 15
    assert not [name for name in names if "_" in name or name.endswith((" s", " ns"))]


def test_nothing_of_a_history_is_taken_for_html(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    history = History().send(1, 0, key=evil).nemesis(evil, evil).send(2, 1, key=evil)
    history.final((1, 2), key=evil, end=2)
    write_meta(tmp_path, {evil: evil, "list": [evil], "deep": {"a": [evil]}})
    page = report_of(history.table(), tmp_path)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 5


def test_its_size_is_bounded(tmp_path: Path) -> None:
    history = History()
    for n in range(4000):
        history.send(n + 1, n, process=n % 70)
        history.poll((n, n + 1), process=100 + n % 3, at=(history.now_ns, history.now_ns + 50))
    assert len(report_of(history.table(), tmp_path)) < 500_000


def test_a_sample_of_the_offsets_shows_every_kind_from_first_to_last() -> None:
    history = History()
    for n in range(100):  # a send and a poll in turn: every second row is of one kind
        history.send(n, n).poll((n, n))
    points = key_points(run_series(history.table()), "x-0", 100, keep=[])
    last = {kind: place for place, kind in enumerate(points.kinds)}
    assert points.total == 200
    assert {kind: points.offsets[place] for kind, place in last.items()} == {
        "sent": 98,
        "polled": 98,
    }


def test_no_line_of_latencies_crosses_a_silence(tmp_path: Path) -> None:
    history = History()
    for n in range(20):
        history.send(n, n)
    history.now_ns += 10**9
    for n in range(20, 40):
        history.send(n, n)
    page = report_of(history.table(), tmp_path)
    assert page.count('class="line p99"') == 2


def test_a_fault_of_several_steps_is_called_by_its_name(tmp_path: Path) -> None:
    history = History().sent(1)
    history.nemesis("pause", "2,3", details="#1 pause_kill: partition-leader")
    history.nemesis("kill", "1", details="#1 pause_kill: partition-leader")
    history.nemesis("kill", "3", details="#2 kill: isr-follower")
    history.nemesis("partition_one", "1", details="#3 partition_one: any; 1->2 2->1")
    history.op(5, "send", [("x-0", 0, 7)])
    page = report_of(history.table(), tmp_path)
    assert "pause_kill (partition-leader): pause 2,3, kill 1" in page
    assert ">kill 3 (isr-follower)</text>" in page
    assert "partition_one 1 (any), 1-&gt;2 2-&gt;1, " in page
    assert "<td>pause 2,3 (pause_kill), kill 1 (pause_kill), kill 3, partition_one 1</td>" in page
    assert ">pause_kill</text>" in page


def test_ticks_are_round() -> None:
    assert ticks(0, 60, 10) == [0, 10, 20, 30, 40, 50, 60]
    assert ticks(0, 0.7, 5) == [0.0, 0.2, 0.4, 0.6000000000000001]
    assert [number(n) for n in (0.2, 10, 1500, 2e6, 0)] == ["0.2", "10", "1.5k", "2M", "0"]


def test_transactions_are_drawn_as_sends_are() -> None:
    sent = Message("x-0", 0, 1, f="send")
    series = run_series(History().txn(0, sent).poll((0, 1)).final((0, 1), end=1).table())
    assert "Latency of transactions over time" in latency_plot(series)
    assert "transactions that ended ok" in rate_plot(series)
    both = run_series(History().txn(0, sent).send(2, 1).table())
    assert "a send or transaction, ok" in latency_plot(both)
