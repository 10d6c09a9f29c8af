"""Checkers are mutated, too: each rule is broken in turn, and a named history must notice.

First each anomaly by itself: without its rule, a history in which it is the only fault is not
invalid any more. Then the rules that these rest on.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from quorumlog.chaos.checkers import (
    check_history,
    checker,
    final_reads,
    kafka_log,
    linearizability,
    log_anomalies,
    log_ends,
    order_anomalies,
    version_order,
)
from quorumlog.chaos.checkers import verdict as verdict_module
from quorumlog.chaos.checkers.verdict import Anomaly, Partial, Severity
from quorumlog.chaos.history.model import IN_TXN, Message
from tests.chaos.test_borders import CASES
from tests.support.chaos.hand_made_histories import STEP_NS, History, found

NAMED = {name: case.make for name, case in CASES.items()}


def sent_in_txn(key: str, value: int) -> Message:
    return Message(key, 0, value, f="send")


def polled_in_txn(key: str, value: int) -> Message:
    return Message(key, 0, value, f="poll")


def with_checksum(checksum: int) -> list[Any]:
    return [("x-0", 0, 1, "", "", checksum)]


ALONE: dict[str, Callable[[], History]] = {
    "phantom": NAMED["a value that nobody sent"],
    "G1a": NAMED["a send that failed appears"],
    "precommitted-read": lambda: (
        History()
        .txn(0, sent_in_txn("x-0", 1), polled_in_txn("x-0", 1), at=(0, 9))
        .final((0, 1), end=1)
    ),
    "G1c": lambda: (
        History()
        .txn(0, sent_in_txn("x-0", 1), polled_in_txn("x-1", 2), at=(0, 9))
        .txn(1, sent_in_txn("x-1", 2), polled_in_txn("x-0", 1), at=(1, 8))
        .final((0, 1), end=1)
        .final((0, 2), key="x-1", end=1)
    ),
    "inconsistent-offsets": lambda: (
        History().sent(1).send(2, process=5, outcome="info").poll((0, 1)).poll((0, 2), process=2)
    ),
    "duplicate": lambda: History().sent(1).poll((0, 1)).poll((1, 1), process=2),
    "altered-record": lambda: (
        History()
        .op(0, "send", with_checksum(5))
        .op(1, "poll", with_checksum(6))
        .final((0, 1), end=1)
    ),
    "lost-write": lambda: History().send(1).send(2, 0).poll((0, 2)).final((0, 2), end=1),
    "vanished-write": NAMED["a value without an offset was seen nowhere else"],
    "G1b": lambda: _asked_at(5).final((0, 1), end=1),
    "consumed-twice": lambda: _moved((0, 1), (0, 1)),
    "unconsumed": lambda: _moved((0, 1), (2, 3)),
    "offset-ahead": lambda: _moved((0, 1), outcome="fail", told=1),
    "offset-lost": lambda: _moved((0, 1), told=-1),
    "corrupt-read": NAMED["a poll failed because what was served is corrupt"],
    "truncated-read": NAMED["a reader stands behind the end of the log"],
    "log-end-regression": NAMED["the log end goes back, and the reader reads on"],
    "hole": lambda: (
        History().send(1, 0).send(2, 2).poll((0, 1), (2, 2)).final((0, 1), (2, 2), end=3)
    ),
    "nonlinearizable-log": NAMED["sent one nanosecond after it"],
    "G1c-realtime": lambda: (
        History().poll((0, 1)).op(0, "send", [("x-0", 0, 1)], details=IN_TXN).final((0, 1), end=1)
    ),
    "nonmonotonic-send": NAMED["a later send of a process lies below"],
    "int-nonmonotonic-send": NAMED["a later record of one send lies below"],
    "int-poll-skip": lambda: (
        History().sent(1, 2, 3).poll((0, 1), (2, 3)).final((0, 1), (1, 2), (2, 3), end=3)
    ),
    "int-nonmonotonic-poll": lambda: (
        History().sent(1, 2).poll((0, 1), (1, 2), (0, 1)).final((0, 1), (1, 2), end=2)
    ),
    "poll-skip": NAMED["a poll that failed has not moved"],
    "nonmonotonic-poll": lambda: (
        History().sent(1, 2).poll((0, 1), (1, 2)).poll((0, 1)).final((0, 1), (1, 2), end=2)
    ),
}


def _asked_at(asked_ms: int) -> History:
    """Send 1 in a transaction from 0 to 9 ms that a poll shows at 3 ms."""
    sent = Message("x-0", 0, 1, f="send")
    commit = Message("", -1, asked_ms * STEP_NS, f="commit")
    history = History().txn(0, sent, commit, at=(0, 9 * STEP_NS))
    return history.poll((0, 1), at=(2 * STEP_NS, 3 * STEP_NS))


def _moved(*steps: tuple[int, int], outcome: str = "ok", told: int | None = None) -> History:
    """Send records 0, 1, 2; let transactions consume [first, after); tell the group's offset."""
    history = History().sent(0, 1, 2)
    for process, (first, after) in enumerate(steps, start=5):
        history.op(process, "assign", [("x-0", -1, 0)]).op(process, "seek", [("x-0", first, 0)])
        polled = [Message("x-0", at, at, f="poll") for at in range(first, after)]
        history.txn(process, *polled, Message("x-0", after, 0, f="offsets"), outcome=outcome)
    if told is not None:
        history.op(9, "committed", [("x-0", told, 0)])
    return history.poll((0, 0), (1, 1), (2, 2)).final((0, 0), (1, 1), (2, 2), end=3)


# In these, final readers would miss what another one has: Jepsen's form has none.
UNMARKED = {"inconsistent-offsets", "duplicate"}
NOT_OF_ONE_KEY = {"node-ended"}  # found from the nemesis's rows: tests/chaos/test_verdict.py


def test_every_anomaly_has_a_history_in_which_it_is_alone() -> None:
    bad = {one.name for one in kafka_log.ANOMALIES if one.severity is Severity.INVALID}
    assert {*ALONE} | NOT_OF_ONE_KEY == bad


def test_the_documentation_has_a_row_for_every_anomaly() -> None:
    text = (Path(__file__).parents[2] / "docs/verification-anomalies.md").read_text()
    rows = re.findall(r"^\| ([\w-]+) \|", text.partition("## The anomalies")[2], re.MULTILINE)
    known = [one.name for one in kafka_log.ANOMALIES]
    assert [name for name in rows if name in known] == known


@pytest.mark.parametrize("name", ALONE)
def test_without_its_rule_an_anomaly_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ALONE[name]().table(
        final_reads="unmarked" if name in UNMARKED else "marked", dense=name == "hole"
    )
    verdict = check_history(table)
    assert (verdict.valid, [one for one in found(verdict) if one != "unseen"]) == (False, [name])
    real = verdict_module.merge

    def forgetful(partials: Sequence[Partial], anomalies: Sequence[Anomaly]) -> Partial:
        merged = real(partials, anomalies)
        merged.results = [result for result in merged.results if result.name != name]
        return merged

    monkeypatch.setattr(checker, "merge", forgetful)
    assert check_history(table).valid is not False


def everywhere(answer: bool) -> Callable[[Any], Any]:
    return lambda _: lambda entries: np.full(len(entries), answer)


def first_reader_only(real: Any) -> Any:
    return lambda key: list(real(key))[:1]


def all_complete(real: Any) -> Any:
    def find(order: Any, finals: Any) -> None:
        real(order, finals)
        finals.complete[:] = True

    return find


def without_segments(_: Any) -> Any:
    def same(entries: Any, before: Any, after: Any) -> Any:
        kept: Any = (entries.process[before] == entries.process[after]) & (
            entries.key[before] == entries.key[after]
        )
        return kept

    return same


def of_ok_sends_only(real: Any) -> Any:
    return lambda entries: real(entries) & (entries.outcome == 0)


def nothing(found: Any) -> Callable[[Any], Any]:
    return lambda _: lambda *_args, **_named: found


class Broken(NamedTuple):
    """A broken rule: what is put in its place, and the history that notices."""

    owner: Any
    attribute: str
    break_it: Callable[[Any], Any]
    make: Callable[[], History]


def acked_by_info() -> History:
    rows = [("x-0", 0, 1), ("x-0", -1, 2)]
    return History().op(0, "send", rows, "info").send(3, 1).final((1, 3), end=2)


RULES: dict[str, Broken] = {
    "every read counts as one from the beginning": Broken(
        log_anomalies,
        "is_from_start",
        everywhere(answer=True),
        NAMED["a poll of unknown outcome may have taken the record"],
    ),
    "no read counts as one from the beginning": Broken(
        log_anomalies,
        "is_from_start",
        everywhere(answer=False),
        NAMED["a reader that sought in another key"],
    ),
    "a final poll of unknown outcome proves a loss": Broken(
        final_reads,
        "is_from_start",
        everywhere(answer=True),
        NAMED["a final poll of unknown outcome may have taken the record"],
    ),
    "only the first final reader is looked at": Broken(
        final_reads,
        "_numbers_within_keys",
        first_reader_only,
        NAMED["a second final reader starts at the second record"],
    ),
    "every key counts as read to its end": Broken(
        final_reads,
        "_find_complete",
        all_complete,
        NAMED["a key to which unknown sends went was never read"],
    ),
    "every claim of an end is believed": Broken(
        final_reads.FinalReads,
        "overclaimed",
        nothing(np.zeros(0, np.int64)),
        NAMED["a final reader claims an end that lies beyond all that anybody saw"],
    ),
    "no reader is too late at the beginning": Broken(
        order_anomalies,
        "_late_starts",
        nothing([]),
        NAMED["an ordinary reader starts at the second record"],
    ),
    "nothing moves a reader": Broken(
        order_anomalies, "_same", without_segments, NAMED["a poll that never ended may have moved"]
    ),
    "readers never stop early": Broken(
        kafka_log,
        "stopped_early",
        nothing([]),
        NAMED["every ordinary reader had stopped before most was acknowledged"],
    ),
    "an offset in an info is no acknowledgement": Broken(
        version_order, "acknowledged", of_ok_sends_only, acked_by_info
    ),
    "no end is compared with what was known": Broken(
        log_ends,
        "_highest_before",
        lambda real: lambda **named: np.full_like(real(**named), -1),
        NAMED["the log end goes back"],
    ),
    "no log has an impossible order": Broken(
        linearizability,
        "violations",
        nothing((np.zeros(0, np.int64), np.zeros(0, np.int64))),
        NAMED["sent one nanosecond after it"],
    ),
    "a value that was sent twice counts as one": Broken(
        version_order.Values,
        "resent",
        lambda _: property(lambda values: np.zeros(len(values.key), np.bool_)),
        NAMED["a value resent by its client lies twice"],
    ),
    "what is not known does not matter": Broken(
        checker, "_gaps", nothing([]), NAMED["a key to which unknown sends went was never read"]
    ),
    "nothing needs to have succeeded": Broken(
        kafka_log, "_MUST_SUCCEED", lambda _: (), NAMED["every ordinary poll failed"]
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, break_it, make = RULES[name]
    verdict = make().verdict()
    monkeypatch.setattr(owner, attribute, break_it(getattr(owner, attribute)))
    broken = make().verdict()
    assert (broken.valid, found(broken)) != (verdict.valid, found(verdict))
