"""What transactions add to the rules of a log, in histories as Jepsen writes them."""

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.checker import facts_of
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.history import HistoryError, Message, read_history
from quorumlog.chaos.history.pairing import table_of
from tests.support.chaos.hand_made_histories import History, rows_of

Micros = list[list[Any]]


def told(tmp_path: Path, *operations: tuple[int, str, Micros, Micros]) -> Any:
    """Return the table of (process, type, what was meant, what was told), one after the other."""
    lines = []
    for place, (process, type_, meant, known) in enumerate(operations):
        for at, (phase, value) in enumerate((("invoke", meant), (type_, known))):
            index = 2 * place + at
            row = {"index": index, "time": index, "process": process, "type": phase, "f": "txn"}
            lines.append(json.dumps({**row, "value": value}))
    file = tmp_path / "history.json"
    file.write_text("\n".join(lines))
    return read_history(file)


def names(verdict: Verdict) -> set[str]:
    return {result.name for result in verdict.results}


def sent(key: str, offset: int, value: int) -> list[Any]:
    return ["send", key, [offset, value]]


def sends(key: str, value: int) -> list[Any]:
    return ["send", key, value]


def polled(**keys: Sequence[tuple[int, int]]) -> list[Any]:
    return ["poll", {key: [list(pair) for pair in pairs] for key, pairs in keys.items()}]


POLL = ["poll"]


def test_transactions_that_read_what_was_committed_are_valid(tmp_path: Path) -> None:
    verdict = check_history(
        told(
            tmp_path,
            (0, "ok", [sends("x", 1), POLL], [sent("x", 0, 1), polled(y=[])]),
            (1, "ok", [POLL, sends("y", 2)], [polled(x=[(0, 1)]), sent("y", 0, 2)]),
            (2, "ok", [POLL, sends("x", 3)], [polled(y=[(0, 2)]), sent("x", 2, 3)]),
            (1, "ok", [POLL], [polled(x=[(2, 3)])]),
        )
    )
    assert (verdict.valid, verdict.results) == (True, [])


CIRCLE = (
    (0, "ok", [sends("x", 1), POLL], [sent("x", 0, 1), polled(z=[(0, 3)])]),
    (1, "ok", [sends("y", 2), POLL], [sent("y", 0, 2), polled(x=[(0, 1)])]),
    (2, "ok", [sends("z", 3), POLL], [sent("z", 0, 3), polled(y=[(0, 2)])]),
)


def test_a_circle_over_three_keys_is_found_however_the_keys_are_cut(tmp_path: Path) -> None:
    table = told(tmp_path, *CIRCLE)
    whole = check_history(table)
    [circle] = [result for result in whole.results if result.name == "G1c"]
    assert [one["index"] for one in circle.witnesses[0]["ops"]] == [0, 2, 4]
    entries, facts = CHECKER.explode(table), facts_of(table.schema.metadata)
    keys = entries.column("key").unique().to_pylist()
    parts = [CHECKER.check(entries.filter(pc.field("key") == key), facts) for key in keys]
    moved = [pickle.loads(pickle.dumps(part)) for part in parts]
    for cut in (moved, moved[::-1]):
        assert CHECKER.conclude(cut, [], facts).as_json() == whole.as_json()


def test_a_transaction_of_which_anything_was_polled_is_whole(tmp_path: Path) -> None:
    crashed = (0, "info", [sends("x", 1), sends("y", 2)], [sent("x", 0, 1), sent("y", 0, 2)])
    later = (1, "ok", [sends("y", 3)], [sent("y", 1, 3)])
    past = (2, "ok", [POLL], [polled(y=[(1, 3)])])
    proof = (3, "ok", [POLL], [polled(x=[(0, 1)])])
    lost = check_history(told(tmp_path, crashed, later, past, proof))
    assert (lost.valid, names(lost)) == (False, {"lost-write"})
    assert lost.results[0].witnesses[0]["ops"][0]["value"] == 2
    assert names(check_history(told(tmp_path, crashed, later, past))) == set()
    below = (2, "ok", [POLL], [polled(y=[])])
    assert "lost-write" not in names(check_history(told(tmp_path, crashed, later, below, proof)))


def test_what_an_aborted_transaction_sent_is_never_polled(tmp_path: Path) -> None:
    aborted = (0, "fail", [sends("x", 1), POLL], [sends("x", 1), polled(y=[])])
    assert "G1a" in names(
        check_history(told(tmp_path, aborted, (1, "ok", [POLL], [polled(x=[(0, 1)])])))
    )


def test_an_aborted_transaction_may_have_polled_what_comes_before(tmp_path: Path) -> None:
    wrote = (0, "ok", [sends("x", 1)], [sent("x", 0, 1)])
    again = (0, "ok", [sends("x", 2)], [sent("x", 1, 2)])
    first = (1, "ok", [POLL, sends("y", 7)], [polled(x=[(0, 1)]), sent("y", 0, 7)])
    aborted = (1, "fail", [POLL, sends("y", 8)], [polled(x=[(1, 2)]), sends("y", 8)])
    back = (1, "ok", [POLL], [polled(x=[(0, 1)])])
    verdict = check_history(told(tmp_path, wrote, again, first, aborted, back))
    assert names(verdict) == {"unseen"}


def test_what_is_no_part_of_a_transaction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="micro-operation"):
        told(tmp_path, (0, "ok", [["append", "x", 1], POLL], [["append", "x", 1], POLL]))
    rows = rows_of(History().op(7, "txn").ops)
    ours = [replace(row, messages=(Message("x", 0, 1, f="append"),)) for row in rows]
    with pytest.raises(HistoryError, match="'append' is no micro-operation of the model"):
        check_history(table_of(ours))
