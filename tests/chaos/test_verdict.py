"""The verdict: how results merge, which is worst, and what keeps it from being valid."""

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from quorumlog.chaos.checkers import CheckResult, Severity, Valid, check_history
from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.kafka_log import ANOMALIES
from quorumlog.chaos.checkers.registry import CHECKERS
from quorumlog.chaos.checkers.verdict import Gap, Partial, merge, worst
from quorumlog.chaos.history.schema import table_of
from tests.support.chaos.hand_made_histories import History, rows_of


def test_the_worst_verdict_wins() -> None:
    values: list[Valid] = [True, "unknown", False]
    for one, other in itertools.product(values, values):
        assert worst([one, other]) == values[max(values.index(one), values.index(other))]
    assert worst([]) == "unknown"


def part(name: str, severity: Severity, *indexes: int) -> Partial:
    witnesses = [{"key": "k", "note": "", "ops": [{"index": index}]} for index in indexes]
    result = CheckResult(name=name, severity=severity, count=len(indexes), witnesses=witnesses)
    return Partial([result], {"polled": 1}, {"lag": max(indexes)}, {"odd": Gap(1, [f"{indexes}"])})


def test_parts_can_be_merged_in_any_order() -> None:
    parts = [
        part("duplicate", Severity.INVALID, 30, 10),
        part("poll-skip", Severity.ALLOWED, 1, 2),
        part("poll-skip", Severity.INVALID, 50),
        part("phantom", Severity.INVALID, *range(100, 200)),
        part("duplicate", Severity.INVALID, 20),
    ]
    merged = [merge(order, ANOMALIES).as_json() for order in itertools.permutations(parts)]
    assert all(each == merged[0] for each in merged)
    results = merged[0]["results"]
    names = [(one["name"], one["count"], len(one["witnesses"])) for one in results]
    assert names == [("phantom", 100, 32), ("duplicate", 3, 3), ("poll-skip", 1, 1)]
    assert [one["ops"][0]["index"] for one in results[1]["witnesses"]] == [10, 20, 30]
    assert (merged[0]["counts"], merged[0]["peaks"]) == ({"polled": 5}, {"lag": 199})
    assert Partial.from_json(merged[0]).as_json() == merged[0]


@pytest.mark.parametrize("checker", CHECKERS.values(), ids=CHECKERS)
def test_every_anomaly_has_one_rank_and_a_meaning(checker: Checker) -> None:
    names = [anomaly.name for anomaly in checker.anomalies]
    assert len({*names}) == len(names)
    assert all(anomaly.meaning.endswith(".") for anomaly in checker.anomalies)
    assert checker.entries.field("key").type == pa.string()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(0, "ok", "send")], "a completion without an invocation"),
        ([(0, "invoke", "poll"), (0, "invoke", "poll")], "last operation was open"),
        ([(0, "invoke", "poll"), (0, "ok", "send")], "a completion of another f"),
        ([(0, "invoke", "txn"), (0, "ok", "txn")], "f = 'txn' is not judged"),
    ],
)
def test_rows_that_do_not_fit_the_model_keep_the_verdict_from_being_valid(
    rows: list[tuple[int, str, str]], reason: str
) -> None:
    good = rows_of(History().sent(1).final((0, 1), end=1).ops)
    template = good[0]
    extra = [
        type(template)(index=100 + n, time_ns=10**9 + n, process=50 + process, type=type_, f=f)
        for n, (process, type_, f) in enumerate(rows)
    ]
    verdict = check_history(table_of([*good, *extra]))
    assert verdict.valid == "unknown"
    assert any(reason in said for said in verdict.unknown_because)


def test_a_send_that_ends_with_other_messages_accuses_nobody() -> None:
    rows = rows_of(History().op(0, "send", [("x-0", 0, 1), ("x-0", 1, 2)]).ops)
    rows[1] = replace(rows[1], messages=rows[1].messages[:1])  # of the second, nothing is said
    last = rows_of(History().final((0, 1), (1, 2), end=2).ops)
    rows += [replace(row, index=row.index + 2, time_ns=row.time_ns + 10**9) for row in last]
    verdict = check_history(table_of(rows))
    assert (verdict.valid, [result.name for result in verdict.results]) == ("unknown", [])
    assert "ended with other messages than it began with" in verdict.unknown_because[0]


def test_an_offset_in_an_invocation_is_no_acknowledgement() -> None:
    row = rows_of(History().sent(1).ops)[0]
    row = replace(row, messages=(row.messages[0]._replace(offset=0),))
    verdict = check_history(table_of([row]))
    assert (verdict.valid, verdict.figures["acknowledged"]) == ("unknown", 0)
    assert verdict.figures["indeterminate"] == 1


def test_time_that_runs_backwards_is_a_problem() -> None:
    good = rows_of(History().sent(1).final((0, 1), end=1).ops)
    swapped = [good[0], *good[2:]]
    late = type(good[1])(
        index=good[1].index, time_ns=-5, process=0, type="ok", f="send", messages=good[1].messages
    )
    verdict = check_history(table_of([swapped[0], late, *swapped[1:]]))
    assert any("before its invocation" in said for said in verdict.unknown_because)
    assert verdict.valid == "unknown"


def test_faults_last_until_they_are_taken_back() -> None:
    history = History().nemesis("kill-all", "1,2").nemesis("pause", "3").nemesis("start", "1,2")
    history.nemesis("resume", "2").nemesis("resume", "3").nemesis("partition").nemesis("heal")
    history.nemesis("start-clock").nemesis("stop-clock").nemesis("kill", "1")
    bands = fault_bands(history.table())
    assert [(str(band), band.start_ns // 10**6) for band in bands] == [
        ("kill-all 1,2", 0),
        ("pause 3", 1),
        ("partition", 5),
        ("start-clock", 7),
        ("kill 1", 9),
    ]
    assert [band.end_ns // 10**6 for band in bands[:4]] == [2, 4, 6, 8]
    assert bands[4].end_ns > 10**18
