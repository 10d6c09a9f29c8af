"""Responses beside a verdict: whose fault may a finding be, the cluster's or the library's?"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history import HistoryError, Message
from quorumlog.chaos.network.error_responses import (
    NO_OFFSET,
    NONE,
    RESPONSES_FILE,
    SECOND_NS,
    ErrorResponse,
)
from quorumlog.chaos.report import write_report
from quorumlog.chaos.verify import verify_history
from quorumlog.cli.verify import verify
from tests.support.chaos.hand_made_histories import STEP_NS, History, found

verifying = typer.Typer()
verifying.command()(verify)

ERROR = "NOT_COORDINATOR"
ASKED_NS = 20 * STEP_NS
DOUBT = (
    "process 7 recorded no committed offset of x-0 at 0.022 s, and node 2 answered OffsetFetch of"
    " client c7 with NOT_COORDINATOR at 0.021 s"
)


def response(at_ns: int, error: str = ERROR, **fields: Any) -> ErrorResponse:
    given = {"node": 2, "api": "OffsetFetch", "client": "c7", **fields}
    return ErrorResponse(time_ns=at_ns, error=error, version=3, correlation_id=1, **given)


def offsets_lost() -> History:
    """A group commits 2 in a transaction; a worker, process 7, gets the answer "none"."""
    history = History().sent(1, 2)
    polled = [Message("x-0", 0, 1, f="poll"), Message("x-0", 1, 2, f="poll")]
    history.txn(5, *polled, Message("x-0", 2, 0, f="offsets"))
    history.op(7, "committed", [("x-0", -1, 0)], at=(ASKED_NS, ASKED_NS + 2 * STEP_NS))
    return history.final((0, 1), (1, 2), end=2)


def judged(
    history: History, responses: Sequence[ErrorResponse], directory: Path, model: str = "kafka_log"
) -> Verdict:
    pq.write_table(history.table(), directory / "history.parquet")
    lines = [json.dumps(one.as_json()) + "\n" for one in responses]
    (directory / RESPONSES_FILE).write_text("".join(lines))
    return verify_history(directory, model=model, engine="local")


def test_a_result_that_the_wire_contradicts_may_be_the_fault_of_the_library(tmp_path: Path) -> None:
    verdict = judged(offsets_lost(), [response(ASKED_NS + STEP_NS)], tmp_path)
    assert verdict.valid is False  # the anomaly stays
    assert found(verdict) == ["offset-lost"]
    assert verdict.library_doubts == [DOUBT]
    [witness] = verdict.results[0].witnesses
    assert witness["library_doubts"] == [DOUBT]
    [shown] = witness["responses"]
    assert (shown["node"], shown["api"], shown["error"], shown["count"]) == (
        *(2, "OffsetFetch"),
        *(ERROR, 1),
    )
    document = verdict.as_json()
    assert document["library_may_be_at_fault"] == [DOUBT]
    assert document["anomalies"]["offset-lost"]["witnesses"][0]["responses"] == [shown]


@pytest.mark.parametrize(
    "responses",
    [
        [],
        [response(ASKED_NS - 1)],  # before the operation
        [response(ASKED_NS + 3 * STEP_NS)],  # after it
        [response(ASKED_NS + STEP_NS, client="c8")],
        [response(ASKED_NS + STEP_NS, client="admin")],
        [response(ASKED_NS + STEP_NS, api="FindCoordinator")],
        [response(ASKED_NS + STEP_NS, partitions=("x-1",))],
        # The broker itself has answered "none" in the end: the cluster's fault.
        [response(ASKED_NS + 1), response(ASKED_NS + 2, NO_OFFSET, partitions=("x-0",))],
        # Lines are missing.
        [
            response(ASKED_NS + 1),
            ErrorResponse(time_ns=ASKED_NS + 2, node=1, api="OffsetFetch", left_out=2),
        ],
    ],
)
def test_a_result_that_may_stand_on_a_response_is_not_doubted(
    responses: list[ErrorResponse], tmp_path: Path
) -> None:
    verdict = judged(offsets_lost(), responses, tmp_path)
    assert (verdict.valid, verdict.library_doubts) == (False, [] if responses else ())


def test_the_answer_of_the_same_partition_decides(tmp_path: Path) -> None:
    last = response(ASKED_NS + 2, NONE, partitions=("x-1",))
    verdict = judged(offsets_lost(), [response(ASKED_NS + 1), last], tmp_path)
    assert len(verdict.library_doubts) == 1


def test_a_witness_shows_the_errors_of_its_clients_the_unusual_ones_first(tmp_path: Path) -> None:
    responses = [
        response(10, "CONCURRENT_TRANSACTIONS", api="EndTxn", client="p5"),
        response(20, client="p5", api="TxnOffsetCommit"),
        response(30, client="p5", api="TxnOffsetCommit"),
        response(40, NO_OFFSET),
        response(50, client="p6"),
        response(60, NONE),
    ]
    verdict = judged(offsets_lost(), responses, tmp_path)
    [witness] = verdict.results[0].witnesses
    shown = [(one["client"], one["error"], one["count"]) for one in witness["responses"]]
    assert shown == [("p5", ERROR, 2), ("p5", "CONCURRENT_TRANSACTIONS", 1)]
    assert verdict.library_doubts == []


def committed_txn() -> History:
    history = History().sent(1)
    history.txn(5, Message("x-0", 1, 2, f="send"), at=(ASKED_NS, ASKED_NS + 5 * STEP_NS))
    return history.final((0, 1), (1, 2), end=2)


@pytest.mark.parametrize("api", ["EndTxn", "TxnOffsetCommit", "AddPartitionsToTxn"])
def test_a_transaction_whose_last_response_is_an_error_was_not_committed_by_it(
    api: str, tmp_path: Path
) -> None:
    error = response(ASKED_NS + 1, client="p5", api=api)
    verdict = judged(committed_txn(), [error], tmp_path)
    assert verdict.valid is True
    assert [text.partition(" at ")[0] for text in verdict.library_doubts] == [
        "process 5 recorded a committed transaction"
    ]
    repeated = response(ASKED_NS + 2, NONE, client="p5", api=api)
    assert judged(committed_txn(), [error, repeated], tmp_path).library_doubts == []


def resumed_at_0(*, asks: bool = False) -> History:
    """A group has committed 2; process 7 becomes the owner and reads from offset 0 on."""
    history = History().sent(1, 2)
    history.op(3, "group_poll", at=(10 * STEP_NS, 11 * STEP_NS))
    history.ops[-1].micros = [
        Message("x-0", -1, 1, f="assigned"),
        Message("x-0", 0, 1, f="group_poll"),
        Message("x-0", 1, 2, f="group_poll"),
    ]
    history.op(3, "commit", [("x-0", 2, 1)], at=(12 * STEP_NS, 13 * STEP_NS))
    history.op(7, "group_poll", at=(20 * STEP_NS, 21 * STEP_NS))
    if asks:
        history.op(7, "committed", [("x-0", 2, 0)], at=(22 * STEP_NS, 24 * STEP_NS))
    history.op(7, "group_poll", at=(25 * STEP_NS, 27 * STEP_NS))
    history.ops[-1].micros = [
        Message("x-0", -1, 2, f="assigned"),
        Message("x-0", 0, 1, f="group_poll"),
    ]
    return history.final((0, 1), (1, 2), end=2)


def test_a_member_that_reads_without_a_position_may_have_dropped_an_error(tmp_path: Path) -> None:
    error = response(23 * STEP_NS, client="m7")
    verdict = judged(resumed_at_0(), [error], tmp_path, "group_log")
    assert "resumed-behind" in found(verdict)
    assert verdict.library_doubts == [
        "process 7 recorded the first record of x-0 at 0.027 s, and node 2 answered OffsetFetch of"
        " client m7 with NOT_COORDINATOR at 0.023 s"
    ]
    retried = response(24 * STEP_NS, NONE, client="m7", partitions=("x-0",))
    assert judged(resumed_at_0(), [error, retried], tmp_path, "group_log").library_doubts == []
    asks = resumed_at_0(asks=True)  # the error was the answer to another question
    assert judged(asks, [error], tmp_path, "group_log").library_doubts == []


def test_the_text_and_the_report_show_responses_and_doubts(tmp_path: Path) -> None:
    verdict = judged(offsets_lost(), [response(ASKED_NS + STEP_NS)], tmp_path)
    said = f"the library may be at fault: {DOUBT}"
    shown = "node 2 answered OffsetFetch of client c7 with NOT_COORDINATOR at 0.021 s"
    result = CliRunner().invoke(verifying, [str(tmp_path), "--engine", "local"])
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert shown in lines
    assert lines.count(said) == 1
    page = write_report(tmp_path, verdict, tmp_path / "report.html").read_text()
    assert f"<li>{shown}</li>" in page
    banner = page[: page.index("</header>")]
    assert "<h1>Invalid</h1>" in banner
    assert said[1:] in banner


def test_doubts_without_an_anomaly_are_in_the_text(tmp_path: Path) -> None:
    responses = [response(ASKED_NS + 1, client="p5", api="EndTxn")]
    assert judged(committed_txn(), responses, tmp_path).valid is True
    result = CliRunner().invoke(verifying, [str(tmp_path), "--engine", "local"])
    assert result.exit_code == 0
    assert "  the library may be at fault: process 5 recorded a committed" in result.stdout


def test_a_damaged_file_of_responses_is_an_error_with_its_line(tmp_path: Path) -> None:
    judged(offsets_lost(), [response(SECOND_NS)], tmp_path)
    (tmp_path / RESPONSES_FILE).write_text("{}\n")
    with pytest.raises(HistoryError, match=r"responses\.jsonl:1: not a response"):
        verify_history(tmp_path, engine="local")
