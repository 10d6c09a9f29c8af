"""The figures of a run: what clients have done, the load, lags, states of the cluster."""

from collections import Counter
from pathlib import Path

import pytest

from quorumlog.chaos.report.lag import lag_lines, unseen_lines
from quorumlog.chaos.report.series import run_series
from quorumlog.chaos.report.state_plot import state_plot
from quorumlog.chaos.run.cluster_states import (
    STATES_FILE,
    ClusterState,
    PartitionState,
    read_states,
)
from quorumlog.chaos.run.figures import LoadMeter, OfferedLoad, figures
from tests.support.chaos.hand_made_histories import History


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
