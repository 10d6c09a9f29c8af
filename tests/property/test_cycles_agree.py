"""What cycles tell of small transactions is what a search through all serial orders tells."""

import random
from typing import Any

import pytest

from quorumlog.chaos.checkers import Severity, Verdict
from quorumlog.chaos.checkers.cycles import RW, WW, Graph, find_cycles
from quorumlog.chaos.checkers.entries import FAIL, INFO, OK
from quorumlog.chaos.checkers.transactions import Transaction, order_in_real_time
from tests.support.chaos.small_transactions import (
    LISTS,
    Txn,
    has_serial_order,
    has_snapshot_order,
    is_in_real_time,
    judged,
    of_registers,
    some_overlapping_txns,
    some_txns,
)
from tests.support.sizes import tries

STRICT = "list-append=strict-serializable"


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


def some_skewed_txns(rng: random.Random) -> list[Txn]:
    """Return transactions that each read a snapshot, which may be old, and append to one list."""
    states: list[dict[str, tuple[int, ...]]] = [dict.fromkeys(LISTS, ())]
    txns = []
    for value in range(rng.randint(2, 4)):
        seen = rng.choice(states)
        name = rng.choice(LISTS)
        micros: list[tuple[str, str, Any]] = [("r", one, seen[one]) for one in rng.sample(LISTS, 2)]
        if rng.random() < 0.8:
            micros.append(("append", name, value))
            states.append(states[-1] | {name: (*states[-1][name], value)})
        txns.append(Txn(rng.choice(["ok", "ok", "ok", "info"]), micros))
    txns.append(ok(*(("r", name, states[-1][name]) for name in LISTS)))
    return txns


def test_under_snapshot_isolation_a_finding_is_true_and_where_all_is_read_none_is_missed() -> None:
    counts = {True: 0, False: 0}
    only_skewed = 0
    for seed in range(tries(1600)):
        rng = random.Random(seed)
        txns = some_skewed_txns(rng) if seed % 4 else some_txns(rng)
        verdict = judged(txns, "list-append=snapshot-isolation")
        expected = has_snapshot_order(txns)
        if verdict.valid is False:
            assert not expected, (seed, txns, verdict.as_json())
        elif all_is_read(txns):
            assert expected, (seed, txns)
        counts[expected] += 1
        if expected and not has_serial_order(txns):
            only_skewed += 1
            assert names(verdict) == ["G2"]
            assert judged(txns).valid is False
    assert min(*counts.values()) > tries(1600) // 10
    assert only_skewed > tries(1600) // 50


def test_each_anomaly_of_snapshots_has_its_name() -> None:
    skew = [
        ok(("append", "x", 1), ("r", "y", ())),
        ok(("append", "y", 1), ("r", "x", ())),
        ok(("r", "x", (1,)), ("r", "y", (1,))),
    ]
    verdict = judged(skew, "list-append=snapshot-isolation")
    assert (verdict.valid, names(verdict)) == (True, ["G2"])
    assert [result.severity for result in verdict.results] == [Severity.ALLOWED]
    fork = [
        ok(("append", "x", 1)),
        ok(("append", "y", 1)),
        ok(("r", "x", (1,)), ("r", "y", ())),
        ok(("r", "y", (1,)), ("r", "x", ())),
    ]
    verdict = judged(fork, "list-append=snapshot-isolation")
    assert (verdict.valid, names(verdict)) == (False, ["G-nonadjacent"])
    lost = [
        ok(("r", "x", ()), ("append", "x", 1)),
        ok(("r", "x", ()), ("append", "x", 2)),
        ok(("r", "x", (1, 2))),
    ]
    verdict = judged(lost, "list-append=snapshot-isolation")
    assert (verdict.valid, names(verdict)) == (False, ["G-single"])


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


def in_real_time(*rows: tuple[int, int, int]) -> dict[int, list[int]]:
    """Return the order of transactions of (outcome, first event, last event)."""
    return order_in_real_time(
        [
            Transaction(
                number=number,
                outcome=outcome,
                micros=(),
                row={"invoked": invoked, "completed": completed},
            )
            for number, (outcome, invoked, completed) in enumerate(rows)
        ]
    )


def test_only_the_last_ended_transactions_precede_the_next() -> None:
    one_by_one = [(OK, 2 * number, 2 * number + 1) for number in range(4)]
    assert in_real_time(*one_by_one) == {0: [1], 1: [2], 2: [3]}
    # 0 ends within 1, so it stays one of the last until 2 has ended, which began after it.
    assert in_real_time((OK, 0, 2), (OK, 1, 9), (OK, 3, 4), (OK, 5, 6)) == {0: [2], 2: [3]}
    assert in_real_time((OK, 0, 1), (FAIL, 2, 3), (INFO, 4, 5), (OK, 6, 7)) == {0: [2, 3]}


def test_a_weaker_circle_of_the_same_transactions_hides_no_stronger_one_in_real_time() -> None:
    graph = Graph()
    graph.add(0, RW, 1, "")
    graph.add(1, RW, 0, "")
    assert [cycle.name for cycle in find_cycles(graph)] == ["G2"]
    graph.add(0, WW, 1, "")
    graph.after = {1: [0]}
    assert [cycle.name for cycle in find_cycles(graph)] == ["G-single", "G0-realtime"]
    graph.add(1, WW, 0, "")
    assert [cycle.name for cycle in find_cycles(graph)] == ["G0", "G-single"]


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


def test_most_spoiled_reads_of_registers_are_found() -> None:
    broken = found = 0
    for seed in range(tries(800)):
        txns = some_registers(random.Random(seed))
        verdict = judged(txns, "rw-register")
        expected = has_serial_order(txns, first=dict.fromkeys(LISTS))
        if verdict.valid is False:
            assert not expected, (seed, txns, verdict.as_json())
        broken += not expected
        found += verdict.valid is False
    assert found > 0.8 * broken > tries(800) // 20  # the order of writes is only partly known
