"""The lag of readers and the unseen records, on histories whose lags are known."""

from quorumlog.chaos.report.plots import lag_lines, unseen_lines
from quorumlog.chaos.report.series import run_series
from tests.support.chaos.hand_made_histories import History

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
