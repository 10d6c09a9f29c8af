"""What cycles tell of small transactions is what a search through all serial orders tells."""

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.history import Message, Operation
from quorumlog.chaos.history.operations_table import table_of
from tests.support.sizes import tries

LISTS = ("x", "y")
STRICT = "list-append=strict-serializable"


@dataclass
class Txn:
    outcome: str
    micros: list[tuple[str, str, Any]]  # a read's list is a tuple
    moments: tuple[int, int] | None = None  # of its two events; None: after those before it


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
    types = [
        (txn.moments or (2 * process, 2 * process + 1), process, txn)
        for process, txn in enumerate(txns)
    ]
    ordered = sorted(
        (moment, process, type_, txn)
        for moments, process, txn in types
        for moment, type_ in zip(moments, ("invoke", txn.outcome), strict=True)
    )
    events = [
        Operation(
            index=at,
            time_ns=at,
            process=process,
            type=type_,
            f="txn",
            messages=messages_of(txn) if type_ in ("invoke", "ok") else (),
        )
        for at, (_, process, type_, txn) in enumerate(ordered)
    ]
    return check_history(table_of(events), model)


def messages_of(txn: Txn) -> tuple[Message, ...]:
    return tuple(
        Message(name, -1, value, "", f)
        if isinstance(value, int)
        else Message(name, -1, 0, json.dumps(value, separators=(",", ":")), f)
        for f, name, value in txn.micros
    )


def has_serial_order(
    txns: list[Txn], allowed: Callable[[Sequence[Txn]], bool] = lambda _: True
) -> bool:
    """Try all allowed orders of what succeeded, with any of what is of unknown outcome."""
    known = [txn for txn in txns if txn.outcome == "ok"]
    unknown = [txn for txn in txns if txn.outcome == "info"]
    return any(
        allowed(order) and explains(order)
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
        for order in itertools.permutations([*known, *chosen])
    )


def explains(order: tuple[Txn, ...]) -> bool:
    is_lists = not any(f == "w" or value is None for txn in order for f, _, value in txn.micros)
    state: dict[str, Any] = dict.fromkeys(LISTS, () if is_lists else None)
    for txn in order:
        for f, name, value in txn.micros:
            if f == "append":
                state[name] = (*state[name], value)
            elif f == "w":
                state[name] = value
            elif txn.outcome == "ok" and state[name] != value:
                return False
    return True


def is_in_real_time(order: Sequence[Txn]) -> bool:
    """Tell whether no transaction stands before another one that ended before it began."""
    begun = -math.inf
    for txn in order:
        assert txn.moments is not None
        if txn.outcome == "ok" and txn.moments[1] < begun:
            return False
        begun = max(begun, txn.moments[0])
    return True


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


def some_overlapping_txns(rng: random.Random) -> list[Txn]:
    """Return transactions with moments: in the order in which they were run, more or less."""
    txns = some_txns(rng)
    width = rng.choice([2, 8, 30])
    drawn = [(10 * n + rng.randint(-width, width), rng.randint(1, width)) for n in range(len(txns))]
    moments = sorted({time for start, length in drawn for time in (start, start + length)})
    for txn, (start, length) in zip(txns, drawn, strict=True):
        # Distinct moments, so that each event has a place.
        place = 2 * len(moments)
        first, last = moments.index(start), moments.index(start + length)
        txn.moments = (place * first + txns.index(txn), place * last + txns.index(txn) + len(txns))
    return txns


def test_with_real_time_a_finding_is_true_and_where_all_is_read_none_is_missed() -> None:
    counts = {True: 0, False: 0}
    only_in_real_time = 0
    for seed in range(tries(1600)):
        txns = some_overlapping_txns(random.Random(seed))
        verdict = judged(txns, STRICT)
        expected = has_serial_order(txns, is_in_real_time)
        if verdict.valid is False:
            assert not expected, (seed, txns, verdict.as_json())
        elif all_is_read(txns):
            assert expected, (seed, txns)
        counts[expected] += 1
        is_serial = has_serial_order(txns)
        only_in_real_time += is_serial and not expected
        if is_serial:  # so real time alone is broken
            assert all(name.endswith("-realtime") for name in names(verdict)), (seed, txns)
    assert min(*counts.values(), only_in_real_time) > tries(1600) // 10


def of_registers(txns: list[Txn]) -> list[Txn]:
    """Return the same transactions of registers: an append writes, a read gets the last value."""
    for txn in txns:
        txn.micros = [
            ("w", name, value) if f == "append" else ("r", name, value[-1] if value else None)
            for f, name, value in txn.micros
        ]
    written = {value for txn in txns for f, _, value in txn.micros if f == "w"}
    for txn in txns:  # no transaction wrote the value: it may be the first one
        txn.micros = [
            (f, name, value if value in written else None) for f, name, value in txn.micros
        ]
    return txns


def test_a_finding_about_registers_is_true() -> None:
    counts = {True: 0, False: 0}
    found = dict.fromkeys(("rw-register", "rw-register=strict-serializable"), 0)
    for seed in range(tries(1600)):
        txns = of_registers(some_overlapping_txns(random.Random(seed)))
        for model in found:
            allowed = is_in_real_time if "=" in model else lambda _: True
            if judged(txns, model).valid is False:
                found[model] += 1
                assert not has_serial_order(txns, allowed), (seed, txns)
        counts[has_serial_order(txns)] += 1
    strictly, weakly = found["rw-register=strict-serializable"], found["rw-register"]
    assert strictly > weakly + tries(1600) // 10
    assert min(weakly, *counts.values()) > tries(1600) // 15


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


AT_ONCE = (0, 99)
IN_ORDER = ((0, 1), (2, 3), (4, 5))


def timed(outcome: str, moments: tuple[int, int], *micros: tuple[str, str, Any]) -> Txn:
    return Txn(outcome, [*micros], moments)


def test_each_anomaly_of_real_time_has_its_name() -> None:
    """Each is serializable; the order in real time closes the circle."""
    first, second, third = IN_ORDER
    cases: dict[str, tuple[str, list[Txn]]] = {
        "G0-realtime": (
            "list-append",
            [
                timed("ok", second, ("append", "x", 1)),
                timed("ok", first, ("append", "x", 2)),
                timed("ok", third, ("r", "x", (1, 2))),
            ],
        ),
        "G1c-realtime": (
            "list-append",
            [timed("ok", second, ("append", "x", 1)), timed("ok", first, ("r", "x", (1,)))],
        ),
        "G-single-realtime": (
            "list-append",
            [
                timed("ok", first, ("append", "x", 1)),
                timed("ok", second, ("r", "x", ())),
                timed("ok", third, ("r", "x", (1,))),
            ],
        ),
        "G2-realtime": (
            "list-append",
            [
                timed("ok", (0, 5), ("append", "x", 1), ("r", "y", ())),
                timed("ok", (1, 2), ("append", "y", 1)),
                timed("ok", (3, 4), ("r", "x", ())),
                timed("ok", (6, 7), ("r", "x", (1,)), ("r", "y", (1,))),
            ],
        ),
        "G-single-realtime ": (
            "rw-register",
            [
                timed("ok", first, ("w", "x", 1)),
                timed("ok", second, ("r", "x", None)),
                timed("ok", third, ("r", "x", 1)),
            ],
        ),
    }
    for name, (model, txns) in cases.items():
        assert judged(txns, f"{model}=serializable").valid is True, name
        verdict = judged(txns, f"{model}=strict-serializable")
        assert names(verdict) == [name.strip()], (name, names(verdict))
        assert verdict.valid is False
        assert verdict.model == f"{model}=strict-serializable"
        assert name.strip() in verdict.meanings
        for txn in txns:
            txn.moments = (AT_ONCE[0] + txns.index(txn), AT_ONCE[1] + txns.index(txn))
        assert judged(txns, f"{model}=strict-serializable").valid is True, name


def test_a_transaction_of_unknown_outcome_never_ended_and_a_failed_one_never_was() -> None:
    first, second, third = IN_ORDER
    read = timed("ok", third, ("r", "x", (1,)))
    for outcome in ("ok", "info", "fail"):
        txns = [
            timed(outcome, first, ("append", "x", 1)),
            timed("ok", second, ("r", "x", ())),
            *([read] if outcome != "fail" else []),
        ]
        assert judged(txns, STRICT).valid is (outcome != "ok"), outcome


def test_a_circle_in_real_time_names_its_step() -> None:
    first, second, third = IN_ORDER
    txns = [
        timed("ok", first, ("append", "x", 1)),
        timed("ok", second, ("r", "x", ())),
        timed("ok", third, ("r", "x", (1,))),
    ]
    (result,) = judged(txns, STRICT).results
    assert [op["role"] for op in result.witnesses[0]["ops"]] == [
        "read before the next: x: without 1",
        "ended before the next began",
    ]


def test_an_unknown_consistency_is_an_error_that_helps() -> None:
    with pytest.raises(ValueError, match=r"no consistency .* did you mean strict-serializable"):
        judged([ok(("r", "x", ()))], "list-append=strict-serializabl")
