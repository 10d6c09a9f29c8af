"""Every model judges the smallest history that it allows, and the nearest that it does not.

The near-linear check of logs stands beside a search through every order that real time allows.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.explode import explode
from quorumlog.chaos.checkers.linearizability import bounds_of, violations
from quorumlog.chaos.checkers.linearizable import linearizable
from quorumlog.chaos.checkers.model import Call
from quorumlog.chaos.checkers.models import MODELS, KeyValue
from quorumlog.chaos.checkers.registry import CHECKERS, find_checker
from quorumlog.chaos.checkers.verdict import Severity
from quorumlog.chaos.checkers.version_order import distinct, order_versions, sorted_pairs
from quorumlog.chaos.checkers.wgl import Answer, Budget, Timed, search
from quorumlog.chaos.history import HistoryError, Message, Operation
from quorumlog.chaos.history.operations_table import table_of
from tests.support.chaos.hand_made_histories import History, found
from tests.support.sizes import tries

Done = tuple[str, Any] | tuple[str, Any, str]  # f, value, outcome (ok if not said)


def message(f: str, value: Any, key: str = "") -> Message:
    is_number = type(value) is int
    text = "" if is_number else json.dumps(value, separators=(",", ":"))
    return Message(key, -1, value if is_number else 0, text, f)


def micros(f: str, value: Any) -> tuple[Message, ...]:
    if f == "cas":
        return message("read", value[0]), message("write", value[1])
    return (message(f, value),)


def one_by_one(done: Sequence[Done]) -> Any:
    """Return a table of operations that follow each other."""
    events: list[Operation] = []
    for process, (f, value, *rest) in enumerate(done):
        outcome = rest[0] if rest else "ok"
        for type_ in ("invoke", outcome):
            at = len(events)
            events.append(
                Operation(
                    index=at,
                    time_ns=at,
                    process=process,
                    type=type_,
                    f=f,
                    messages=micros(f, value) if type_ in ("invoke", "ok") else (),
                )
            )
    return table_of(events)


def judged(model: str, *done: Done) -> Verdict:
    return check_history(one_by_one(done), model)


GOOD: dict[str, list[list[Done]]] = {
    "register": [[("read", None), ("write", 1), ("read", 1)], [("write", 1, "info"), ("read", 1)]],
    "cas-register": [
        [("write", 1), ("cas", (1, 2)), ("read", 2), ("cas_refused", 1)],
        [("write", 1), ("write", 2), ("write", 1), ("read", 1)],
        [("write", "a"), ("read", "a")],
    ],
    "kv": [[("append", "a"), ("append", "b"), ("get", "ab"), ("put", "c"), ("get", "c")]],
    "mutex": [[("acquire", None), ("release", None), ("acquire", None)]],
    "linearizable-set": [[("add", 1), ("add", 2), ("read", [2, 1])]],
    "linearizable-counter": [[("add", 1), ("add", -3), ("read", -2)]],
    "unordered-queue": [[("enqueue", 1), ("enqueue", 2), ("dequeue", 2), ("dequeue", 1)]],
    "fifo-queue": [[("enqueue", 1), ("enqueue", 2), ("dequeue", 9, "info"), ("dequeue", 2)]],
    "set": [[("add", 1), ("add", 2, "info"), ("add", 3, "fail"), ("read", [1, 2])]],
    "set-full": [[("add", 1), ("read", []), ("read", [1])]],
    "counter": [[("add", 1), ("add", 5, "info"), ("read", 1)], [("add", 5, "info"), ("read", 5)]],
    "bank": [[("read", {"a": 3, "b": 0}), ("read", {"a": 1, "b": 2})]],
}
BAD: dict[str, list[tuple[str, list[Done]]]] = {
    "register": [("nonlinearizable", [("write", 1), ("write", 2), ("read", 1)])],
    "cas-register": [
        ("nonlinearizable", [("write", 1), ("cas", (2, 3))]),
        ("nonlinearizable", [("write", 1), ("cas_refused", 1)]),
        ("nonlinearizable", [("write", 1), ("write", 2), ("write", 1), ("read", 2)]),
    ],
    "kv": [("nonlinearizable", [("append", "a"), ("append", "b"), ("get", "ba")])],
    "mutex": [("nonlinearizable", [("acquire", None), ("acquire", None)])],
    "linearizable-set": [("nonlinearizable", [("add", 1), ("read", [])])],
    "linearizable-counter": [("nonlinearizable", [("add", 1), ("read", 2)])],
    "unordered-queue": [("nonlinearizable", [("enqueue", 1), ("dequeue", 1), ("dequeue", 1)])],
    "fifo-queue": [("nonlinearizable", [("enqueue", 1), ("enqueue", 2), ("dequeue", 2)])],
    "set": [
        ("lost", [("add", 1), ("add", 2), ("read", [1])]),
        ("phantom", [("read", [1])]),
        ("phantom", [("add", 1, "fail"), ("read", [1])]),
        ("duplicate", [("add", 1), ("read", [1, 1])]),
    ],
    "set-full": [
        ("lost", [("add", 1), ("read", [1]), ("read", [])]),
        ("lost", [("add", 1, "info"), ("read", [1]), ("read", [])]),
        ("phantom", [("add", 1), ("read", [1, 2])]),
    ],
    "counter": [
        ("out-of-bounds", [("add", 1), ("read", 0)]),
        ("out-of-bounds", [("add", 1, "fail"), ("read", 1)]),
        ("out-of-bounds", [("add", -1), ("read", 0)]),
    ],
    "bank": [
        ("wrong-total", [("read", {"a": 3, "b": 0}), ("read", {"a": 3, "b": 1})]),
        ("negative-balance", [("read", {"a": 3, "b": -1})]),
        ("no-balance", [("read", {"a": 3, "b": None})]),
    ],
}
TRANSACTIONS = ("list-append", "rw-register", "long-fork", "multi-register")


@pytest.mark.parametrize(
    ("model", "done"), [(model, done) for model, all_ in GOOD.items() for done in all_]
)
def test_what_a_model_allows_is_valid(model: str, done: list[Done]) -> None:
    verdict = judged(model, *done)
    assert verdict.valid is True, verdict.as_json()
    assert verdict.model == model


@pytest.mark.parametrize(
    ("model", "name", "done"), [(model, *one) for model, all_ in BAD.items() for one in all_]
)
def test_what_a_model_forbids_has_a_witness(model: str, name: str, done: list[Done]) -> None:
    verdict = judged(model, *done)
    assert verdict.valid is False
    (result,) = [one for one in verdict.results if one.name == name]
    assert result.count == len(result.witnesses) >= 1
    assert name in verdict.meanings


def test_every_model_is_tried() -> None:
    # Tried in files of their own.
    logs = {"kafka_log", "group_log", "list_offsets", "topics", "topic_lives", "wire_rules"}
    others = logs | {"authorized", "mirror", *TRANSACTIONS}
    assert {*GOOD} == {*BAD} == {*CHECKERS} - others


@pytest.mark.parametrize("model", [*GOOD, *TRANSACTIONS])
def test_nothing_and_no_success_are_unknown(model: str) -> None:
    empty = check_history(table_of([]), model)
    assert (empty.valid, empty.unknown_because) == ("unknown", ["the history is empty"])
    f = sorted(CHECKERS[model].operations)[0]
    if f != "txn":
        failed = judged(model, (f, (1, 2) if f == "cas" else 1, "fail"))
        assert failed.valid == "unknown"
        assert "no operation succeeded" in failed.unknown_because


def test_a_set_that_is_never_read_is_unknown_and_a_stale_read_is_allowed() -> None:
    verdict = judged("set", ("add", 1))
    assert verdict.valid == "unknown"
    assert verdict.unknown_because == ["a set was never read: 1 (the only one)"]
    verdict = judged("set-full", ("add", 1), ("read", []), ("read", [1]))
    (stale,) = verdict.results
    assert (stale.name, stale.severity) == ("stale", Severity.ALLOWED)


def test_keys_are_judged_one_by_one() -> None:
    events: list[Operation] = []
    for at, (key, value) in enumerate([("a", 1), ("b", 1), ("b", 1), ("a", 2)]):
        f = "write" if at < 2 else "read"
        for type_ in ("invoke", "ok"):
            number = len(events)
            told = (message(f, value, key),)
            events.append(
                Operation(index=number, time_ns=number, process=0, type=type_, f=f, messages=told)
            )
    verdict = check_history(table_of(events), "register")
    (result,) = verdict.results
    assert [witness["key"] for witness in result.witnesses] == ["a"]
    assert verdict.figures["keys"] == 2


def test_a_register_may_begin_with_a_value() -> None:
    done: list[Done] = [("read", 0), ("write", 1)]
    assert judged("cas-register", *done).valid is False
    assert judged("cas-register=0", *done).valid is True
    assert judged('register="x"', ("read", "x")).valid is True


class Latch:
    """A model of a user: once set, it stays set."""

    name = "latch"
    operations = frozenset({"set", "look"})
    reads = frozenset({"look"})
    initial = False

    def step(self, state: bool, call: Call) -> tuple[bool, ...]:
        if call.f == "set":
            return (True,)
        return (state,) if state == call.values[0] else ()


LATCH = Latch()


def test_a_model_of_a_user_is_found_by_its_module_or_given() -> None:
    model = f"{__name__}:LATCH"
    assert judged(model, ("look", False), ("set", None), ("look", True)).valid is True
    assert judged(model, ("set", None), ("look", False)).valid is False
    table = one_by_one([("look", False)])
    assert check_history(table, linearizable(LATCH)).valid is True


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("cas-registr", "did you mean cas-register"),
        ("no.such.module:X", "No module named"),
        (f"{__name__}:NOTHING", "no attribute 'NOTHING'"),
        (f"{__name__}:GOOD", "is no model: it has no name, operations"),
        ("kv=1", "no register is called 'kv'"),
        ("register=x", "is not JSON"),
    ],
)
def test_a_model_that_there_is_not_is_an_error_that_helps(model: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_checker(model)


@pytest.mark.parametrize(
    ("model", "done", "said"),
    [
        ("register", [("cas", (1, 2))], "f = 'cas' is no operation of the model register"),
        ("counter", [("add", "x")], 'event 0: "x" is no number'),
        ("bank", [("read", 5)], "returns balances by account"),
    ],
)
def test_a_history_of_another_model_is_an_error(model: str, done: list[Done], said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        judged(model, *done)


def test_a_search_whose_budget_ends_is_unknown() -> None:
    """Ten open adds and a sum that none of their orders gives: 2 ** 10 configurations."""
    events: list[Operation] = []
    for process in range(10):
        at = len(events)
        told = (message("add", 3**process),)
        events.append(
            Operation(index=at, time_ns=at, process=process, type="invoke", f="add", messages=told)
        )
    for type_ in ("invoke", "ok"):
        at = len(events)
        told = (message("read", 2),)
        events.append(
            Operation(index=at, time_ns=at, process=99, type=type_, f="read", messages=told)
        )
    timed = [Timed(Call(f="add", values=(3**n,), is_known=False), n, None) for n in range(10)]
    timed.append(Timed(Call(f="read", values=(2,)), 10, 11))
    counter = MODELS["linearizable-counter"]
    assert search(counter, timed, Budget(steps=10**6, held_bytes=1 << 30)).answer is Answer.NO
    for budget in (Budget(steps=100, held_bytes=1 << 30), Budget(steps=10**6, held_bytes=9_000)):
        assert search(counter, timed, budget).answer is Answer.UNDECIDED
    assert check_history(table_of(events), "linearizable-counter").valid is False


class Unguided:
    """The same model, without what guides the search."""

    def __init__(self) -> None:
        self.name, self.initial = "kv", ""
        self.operations, self.reads = KeyValue().operations, KeyValue().reads

    def step(self, state: Any, call: Call) -> Any:
        return KeyValue().step(state, call)


def test_the_guide_of_a_search_changes_no_verdict() -> None:
    answers = {True: 0, False: 0}
    for seed in range(400):
        rng = random.Random(seed)
        moments = rng.sample(range(100), 14)
        timed = []
        for number in range(7):
            invoked, completed = sorted(moments[2 * number : 2 * number + 2])
            f = rng.choice(["get", "get", "append", "put"])
            value = "ab"[rng.randint(0, 1)]
            if f == "get":
                value = "".join(rng.choice("ab") for _ in range(rng.randint(0, 2)))
            is_known = f == "get" or rng.random() < 0.8
            call = Call(f=f, values=(value,), is_known=is_known)
            timed.append(Timed(call, invoked, completed if is_known else None))
        ample = Budget(steps=10**6, held_bytes=1 << 30)
        answer = search(KeyValue(), timed, ample).answer
        assert answer is search(Unguided(), timed, ample).answer, seed
        answers[answer is Answer.YES] += 1
    assert min(answers.values()) > 40


CASES = tries(5000)
NEVER = 1 << 60


@dataclass(frozen=True)
class Step:
    start: int
    end: int
    offset: int | None  # of an append
    reads: int  # of a poll: how many records must be there; 0 for an append


def search_all(steps: list[Step], appended: int) -> bool:
    """Is there an order of all steps, each between its start and its end, that a log can do?"""
    if not steps:
        return True
    first_end = min(step.end for step in steps)
    for place, step in enumerate(steps):
        if step.start > first_end:
            continue  # another one ended before this one began
        if step.offset is not None and step.offset != appended:
            continue
        if step.reads > appended:
            continue
        rest = steps[:place] + steps[place + 1 :]
        if search_all(rest, appended + (step.offset is not None)):
            return True
    return False


def add_random_case(history: History, case: int, rng: random.Random) -> list[Step]:
    """Draw a few sends, some indeterminate, and polls of slices, all of one key."""
    key, process = f"case-{case}", case * 100
    count = rng.randrange(2, 6)
    starts = [rng.randrange(14) for _ in range(count)]
    ends = [start + rng.randrange(1, 7) for start in starts]
    wish = sorted(range(count), key=lambda n: starts[n] + rng.randrange(6))
    polls = []
    for _ in range(rng.randrange(3)):
        low = rng.randrange(count)
        start = rng.randrange(16)
        polls.append((start, start + rng.randrange(1, 5), low, rng.randrange(low, count) + 1))
    polled = {offset for *_, low, high in polls for offset in range(low, high)}
    info = {offset for offset in polled if rng.random() < 0.3}
    steps = []
    for offset, n in enumerate(wish):
        end = NEVER if offset in info else ends[n]
        steps.append(Step(starts[n], end, offset, 0))
        history.send(
            100 + n,
            -1 if offset in info else offset,
            process=process + n,
            key=key,
            outcome="info" if offset in info else "ok",
            at=(starts[n], ends[n] + 30 if offset in info else ends[n]),
        )
    for place, (start, end, low, high) in enumerate(polls):
        steps.append(Step(start, end, None, high))
        pairs = [(offset, 100 + wish[offset]) for offset in range(low, high)]
        history.poll(*pairs, process=process + 20 + place, key=key, at=(start, end))
    return steps


def test_it_agrees_with_a_search_through_all_orders() -> None:
    rng, history = random.Random(20261121), History()
    possible = [search_all(add_random_case(history, case, rng), 0) for case in range(CASES)]
    entries = explode(history.table())
    entries = entries.take(np.lexsort((entries.ordinal, entries.op)))
    order = order_versions(entries)
    bounds = bounds_of(order)
    at, _ = violations(bounds.lower, bounds.upper, order.key_start)
    broken = {entries.keys[key] for key in order.place_key[at].tolist()}
    assert broken == {f"case-{case}" for case in range(CASES) if not possible[case]}
    assert CASES // 4 < sum(possible) < 3 * CASES // 4


def test_what_it_finds_is_in_the_verdict() -> None:
    rng = random.Random(7)
    for _ in range(100):
        history = History()
        possible = search_all(add_random_case(history, 0, rng), 0)
        assert ("nonlinearizable-log" not in found(history.verdict())) is possible, history.ops


@pytest.mark.parametrize("widest", [3, 181, 182, 1 << 62])  # 182 * 363 values are above 16 bits
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_pairs_are_in_order_and_rows_of_one_pair_stay(rows: int, widest: int) -> None:
    rng = np.random.default_rng(rows)
    major = rng.integers(0, min(widest, 1 << 30), rows).astype(np.int32)
    minor = rng.integers(-widest, widest, rows)
    wanted = sorted(range(rows), key=lambda row: (int(major[row]), int(minor[row]), row))
    assert sorted_pairs(major, minor).tolist() == wanted
    numbers, first = distinct(major, minor)
    pairs = sorted({*zip(major.tolist(), minor.tolist(), strict=True)})
    assert [pairs[number] for number in numbers.tolist()] == list(
        zip(major.tolist(), minor.tolist(), strict=True)
    )
    earliest = [int(np.flatnonzero(numbers == place)[0]) for place in range(len(pairs))]
    assert first.tolist() == earliest
