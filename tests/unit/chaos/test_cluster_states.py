"""`states.jsonl`: what is read back, and what the report makes of it."""

from pathlib import Path

import pytest

from quorumlog.chaos.report.state_plot import state_plot
from quorumlog.chaos.run.cluster_states import (
    STATES_FILE,
    ClusterState,
    PartitionState,
    read_states,
)


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


def test_what_nobody_told_is_a_gap() -> None:
    states = [state(0, 1, (1,)), ClusterState(time_ns=2 * 10**9, partitions={}, error="no answer")]
    assert "0.00 s to 2.00 s" in state_plot(states, [], 10.0)
    assert "to 10.00 s" not in state_plot(states, [], 10.0)
