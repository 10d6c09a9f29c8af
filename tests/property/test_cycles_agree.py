"""What cycles tell of small transactions is what a search through all serial orders tells."""

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.history import Message, Operation
from quorumlog.chaos.history.operations_table import table_of
from tests.support.sizes import tries

LISTS = ("x", "y")


@dataclass
class Txn:
    outcome: str
    micros: list[tuple[str, str, Any]]  # a read's list is a tuple


def some_txns(rng: random.Random) -> list[Txn]:
    """Run transactions one after the other, read everything at the end, and spoil some reads."""
    state: dict[str, tuple[int, ...]] = dict.fromkeys(LISTS, ())
    txns, value = [], 0
    for _ in range(rng.randint(1, 4)):
        micros: list[tuple[str, str, Any]] = []
        after = dict(state)
        for _ in range(rng.randint(1, 3)):
            name = rng.choice(LISTS)
            if rng.random() < 0.5:
                value += 1
                after[name] = (*after[name], value)
                micros.append(("append", name, value))
            else:
                micros.append(("r", name, after[name]))
        outcome = rng.choice(["ok", "ok", "ok", "info", "fail"])
        if outcome == "ok" or (outcome == "info" and rng.random() < 0.5):
            state = after
        txns.append(Txn(outcome, micros))
    txns.append(Txn("ok", [("r", name, state[name]) for name in LISTS]))
    for txn in txns:
        for place, (f, name, read) in enumerate(txn.micros):
            if f == "r" and rng.random() < 0.2:
                txn.micros[place] = (f, name, spoiled(read, rng))
    rng.shuffle(txns)
    return txns


def spoiled(read: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    how = rng.randint(0, 3)
    if how == 0:
        return read[:-1]
    if how == 1:
        return read[1:]
    return tuple(rng.sample(read, len(read))) if how == 2 else (*read, rng.randint(1, 6))


def judged(txns: list[Txn], model: str = "list-append") -> Verdict:
    events: list[Operation] = []
    for process, txn in enumerate(txns):
        for type_ in ("invoke", txn.outcome):
            messages = tuple(
                Message(name, -1, value, "", f)
                if isinstance(value, int)
                else Message(name, -1, 0, json.dumps(value, separators=(",", ":")), f)
                for f, name, value in txn.micros
            )
            told = messages if type_ in ("invoke", "ok") else ()
            at = len(events)
            events.append(
                Operation(index=at, time_ns=at, process=process, type=type_, f="txn", messages=told)
            )
    return check_history(table_of(events), model)


def explains_lists(order: tuple[Txn, ...]) -> bool:
    state: dict[str, tuple[int, ...]] = dict.fromkeys(LISTS, ())
    for txn in order:
        for f, name, value in txn.micros:
            if f == "append":
                state[name] = (*state[name], value)
            elif txn.outcome == "ok" and state[name] != value:
                return False
    return True


def has_serial_order(
    txns: list[Txn], explains: Callable[[tuple[Txn, ...]], bool] = explains_lists
) -> bool:
    """Try all orders of what succeeded, with any of what is of unknown outcome."""
    known = [txn for txn in txns if txn.outcome == "ok"]
    unknown = [txn for txn in txns if txn.outcome == "info"]
    return any(
        explains(order)
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
        for order in itertools.permutations([*known, *chosen])
    )


def all_is_read(txns: list[Txn]) -> bool:
    """Tell whether a read holds each value that was appended for certain."""
    done = [txn for txn in txns if txn.outcome == "ok"]
    added = {(name, value) for txn in done for f, name, value in txn.micros if f == "append"}
    read = {
        (name, one) for txn in done for f, name, value in txn.micros if f == "r" for one in value
    }
    return added <= read


def test_a_finding_is_true_and_where_all_is_read_none_is_missed() -> None:
    counts = {True: 0, False: 0}
    for seed in range(tries(800)):
        txns = some_txns(random.Random(seed))
        verdict, expected = judged(txns), has_serial_order(txns)
        if verdict.valid is False:
            assert not expected, (seed, txns, verdict.as_json())
        elif all_is_read(txns):
            assert expected, (seed, txns)
        counts[expected] += 1
    assert min(counts.values()) > tries(800) // 6


def names(verdict: Verdict) -> list[str]:
    return [result.name for result in verdict.results]


def ok(*micros: tuple[str, str, Any]) -> Txn:
    return Txn("ok", [*micros])


def test_each_anomaly_of_lists_has_its_name() -> None:
    cases = {
        "G0": [
            ok(("append", "x", 1), ("append", "y", 1)),
            ok(("append", "x", 2), ("append", "y", 2)),
            ok(("r", "x", (1, 2))),
            ok(("r", "y", (2, 1))),
        ],
        "G1a": [Txn("fail", [("append", "x", 1)]), ok(("r", "x", (1,)))],
        "G1b": [
            ok(("append", "x", 1), ("append", "x", 2)),
            ok(("r", "x", (1,))),
            ok(("r", "x", (1, 2))),
        ],
        "G1c": [ok(("append", "x", 1), ("r", "y", (1,))), ok(("append", "y", 1), ("r", "x", (1,)))],
        "G-single": [
            ok(("append", "x", 1), ("append", "y", 1)),
            ok(("r", "x", (1,)), ("r", "y", ())),
            ok(("r", "y", (1,))),
        ],
        "G2": [
            ok(("append", "x", 1), ("r", "y", ())),
            ok(("append", "y", 1), ("r", "x", ())),
            ok(("r", "x", (1,)), ("r", "y", (1,))),
        ],
        "internal": [ok(("append", "x", 1), ("r", "x", ())), ok(("r", "x", (1,)))],
        "incompatible-order": [
            ok(("append", "x", 1)),
            ok(("append", "x", 2)),
            ok(("r", "x", (1, 2))),
            ok(("r", "x", (2, 1))),
        ],
        "duplicate-elements": [ok(("append", "x", 1)), ok(("r", "x", (1, 1)))],
        "phantom": [ok(("append", "x", 1)), ok(("r", "x", (1, 9)))],
    }
    for name, txns in cases.items():
        verdict = judged(txns)
        assert verdict.valid is False, name
        assert name in names(verdict), (name, names(verdict))
        assert not has_serial_order(txns)


def test_a_cycle_is_told_as_its_shortest_circle_with_reasons() -> None:
    txns = [
        ok(("append", "x", 1), ("r", "y", ())),
        ok(("append", "y", 1), ("r", "x", ())),
        ok(("r", "x", (1,)), ("r", "y", (1,))),
    ]
    (result,) = judged(txns).results
    (witness,) = result.witnesses
    assert witness["note"] == "a circle of 2 transactions"
    assert [op["role"] for op in witness["ops"]] == [
        "read before the next: y: without 1",
        "read before the next: x: without 1",
    ]


def test_each_anomaly_of_registers_has_its_name() -> None:
    cases = {
        "G1a": [Txn("fail", [("w", "x", 1)]), ok(("r", "x", 1))],
        "G1b": [ok(("w", "x", 1), ("w", "x", 2)), ok(("r", "x", 1))],
        "G1c": [ok(("w", "x", 1), ("r", "y", 1)), ok(("w", "y", 1), ("r", "x", 1))],
        "internal": [ok(("w", "x", 1), ("r", "x", 2)), ok(("w", "x", 2))],
        "internal ": [ok(("r", "x", 1), ("w", "x", 1))],
        "G2": [
            ok(("w", "x", 1)),
            ok(("r", "x", 1), ("w", "x", 2)),
            ok(("r", "x", 1), ("w", "x", 3)),
        ],
    }
    for name, txns in cases.items():
        verdict = judged(txns, "rw-register")
        assert verdict.valid is False, name
        assert name.strip() in names(verdict), (name, names(verdict))
    verdict = judged([ok(("r", "x", 7))], "rw-register")
    assert (verdict.valid, names(verdict)) == (True, ["unwritten-read"])


def test_a_transaction_in_doubt_of_which_a_register_was_read_has_written_the_others() -> None:
    """Nil of y is read beside 1 of x, and one transaction wrote both."""
    doubt = Txn("info", [("w", "x", 1), ("w", "y", 1)])
    torn = ok(("r", "x", 1), ("r", "y", None))
    verdict = judged([doubt, torn], "rw-register")
    assert (verdict.valid, names(verdict)) == (False, ["G-single"])
    assert judged([doubt, ok(("r", "y", None))], "rw-register").valid is True
    whole = ok(("r", "x", 1), ("r", "y", 1))
    assert judged([doubt, whole], "rw-register").valid is True


def some_registers(rng: random.Random) -> list[Txn]:
    """Run transactions on registers one after the other, and spoil some reads."""
    state: dict[str, int | None] = dict.fromkeys(LISTS)
    written: dict[str, list[int | None]] = {name: [None] for name in LISTS}
    txns, value = [], 0
    for _ in range(rng.randint(2, 5)):
        micros: list[tuple[str, str, Any]] = []
        after = dict(state)
        for _ in range(rng.randint(1, 3)):
            name = rng.choice(LISTS)
            if rng.random() < 0.5:
                value += 1
                after[name] = value
                written[name].append(value)
                micros.append(("w", name, value))
            else:
                read = rng.choice(written[name]) if rng.random() < 0.3 else after[name]
                micros.append(("r", name, read))
        outcome = rng.choice(["ok", "ok", "info", "fail"])
        if outcome == "ok" or (outcome == "info" and rng.random() < 0.5):
            state = after
        txns.append(Txn(outcome, micros))
    rng.shuffle(txns)
    return txns


def explains_registers(order: tuple[Txn, ...]) -> bool:
    state: dict[str, int | None] = dict.fromkeys(LISTS)
    for txn in order:
        for f, name, value in txn.micros:
            if f == "w":
                state[name] = value
            elif txn.outcome == "ok" and state[name] != value:
                return False
    return True


def test_a_finding_about_registers_is_true() -> None:
    broken = found = 0
    for seed in range(tries(800)):
        txns = some_registers(random.Random(seed))
        verdict = judged(txns, "rw-register")
        expected = has_serial_order(txns, explains_registers)
        if verdict.valid is False:
            assert not expected, (seed, txns, verdict.as_json())
        broken += not expected
        found += verdict.valid is False
    assert found > 0.8 * broken > tries(800) // 20  # the order of writes is only partly known
