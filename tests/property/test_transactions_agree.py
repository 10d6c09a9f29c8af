"""The models of transactions on registers agree with a search through all orders."""

import itertools
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.checkers import Severity, Verdict, check_history, multi_register
from quorumlog.chaos.checkers.registry import find_checker
from quorumlog.chaos.checkers.verdict import CheckResult, Gap, Partial
from quorumlog.chaos.checking import local
from quorumlog.chaos.checking.local import check_in_parts
from quorumlog.chaos.checking.parts import row_groups
from quorumlog.chaos.checking.parts.row_groups import find_row_groups
from quorumlog.chaos.history import HistoryError, HistorySource
from tests.support.chaos.joined_histories import apart, same
from tests.support.chaos.small_transactions import (
    LISTS,
    Txn,
    has_serial_order,
    is_in_real_time,
    judged,
    of_registers,
    some_group_reads,
    some_moments,
    some_overlapping_txns,
    table_of_txns,
)
from tests.support.sizes import tries

VALUES = (None, 1, 2)


def some_writers_and_readers(rng: random.Random) -> list[Txn]:
    """Run transactions on two registers, with few values, and spoil some reads."""
    state: dict[str, Any] = {name: rng.choice(VALUES) for name in LISTS}
    txns = []
    spoils = rng.choice([0.0, 0.1, 0.3])
    for _ in range(rng.randint(1, 5)):
        micros: list[tuple[str, str, Any]] = []
        after = dict(state)
        for _ in range(rng.randint(1, 3)):
            name = rng.choice(LISTS[: rng.randint(1, 2)])
            if rng.random() < 0.4:
                after[name] = rng.choice(VALUES[1:])
                micros.append(("w", name, after[name]))
            else:
                read = rng.choice(VALUES) if rng.random() < spoils else after[name]
                micros.append(("r", name, read))
        outcome = rng.choice(["ok", "ok", "ok", "info", "fail"])
        if outcome == "ok" or (outcome == "info" and rng.random() < 0.5):
            state = after
        txns.append(Txn(outcome, micros))
    return some_moments(txns, rng)


def has_order(txns: list[Txn], first: dict[str, Any]) -> bool:
    return has_serial_order(txns, is_in_real_time, first)


@pytest.mark.parametrize("guesses", [multi_register._GUESSES_MAX, 1])
def test_registers_that_are_written_together_have_an_order_or_not(
    monkeypatch: pytest.MonkeyPatch, guesses: int
) -> None:
    """With more possible first values than are tried, the search itself finds them."""
    monkeypatch.setattr(multi_register, "_GUESSES_MAX", guesses)
    counts = {True: 0, False: 0}
    for seed in range(tries(800)):
        rng = random.Random(seed)
        txns = some_writers_and_readers(rng)
        if not any(txn.outcome == "ok" for txn in txns):
            continue
        possible = [
            dict(zip(LISTS, values, strict=True))
            for values in itertools.product(VALUES, repeat=len(LISTS))
        ]
        orders = [has_order(txns, first) for first in possible]
        assert judged(txns, "multi-register").valid is any(orders), (seed, txns)
        place = rng.randrange(len(possible))
        given = {name: value for name, value in possible[place].items() if value is not None}
        model = f"multi-register={given}".replace("'", '"')
        assert judged(txns, model).valid is orders[place], (seed, txns, model)
        counts[any(orders)] += 1
    assert min(counts.values()) > tries(800) // 10


def test_a_search_without_an_answer_for_some_first_values_is_no_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def search(model: multi_register.Registers, first_is_undecided: bool) -> Any:
        is_first = dict(model.initial)["x"] == 1  # type: ignore[call-overload]
        decided = CheckResult(name="nonlinearizable", severity=Severity.INVALID, count=1)
        undecided = Partial(gaps={"no answer": Gap(1, ["x"])})
        answer = undecided if is_first == first_is_undecided else Partial(results=[decided])
        answer.counts = {"operations": 2, "ok": 2}
        return SimpleNamespace(check=lambda *_: answer)

    reads = [ok(("r", "x", 1), at=(0, 2)), ok(("r", "x", 2), at=(1, 3))]
    for first_is_undecided in (False, True):
        monkeypatch.setattr(
            multi_register, "linearizable", partial(search, first_is_undecided=first_is_undecided)
        )
        assert judged(reads, "multi-register").valid == "unknown"


def test_registers_that_no_transaction_connects_are_searched_apart() -> None:
    """Twelve registers with four writers each at once: together, more orders than a budget has."""
    txns = []
    for number in range(12):
        writes = [("w", f"r{number}", value) for value in range(4)]
        txns += [Txn("info", [write], (number * 4 + write[2], 900)) for write in writes]
        moments = (600 + number, 700 + number)
        txns.append(Txn("ok", [("r", f"r{number}", 9), ("r", f"r{number}", 8)], moments))
    for place, txn in enumerate(txns):
        txn.moments = (txn.moments or (0, 0))[0], 1000 + place
    verdict = judged(txns, "multi-register")
    assert verdict.valid is False
    assert (verdict.figures["keys"], verdict.results[0].count) == (12, 12)


def ok(*micros: tuple[str, str, Any], at: tuple[int, int] | None = None) -> Txn:
    return Txn("ok", [*micros], at)


def names(verdict: Verdict) -> list[str]:
    return [result.name for result in verdict.results]


def test_the_first_values_of_registers_are_given_or_those_of_the_first_reads() -> None:
    txns = [
        ok(("r", "x", 5)),
        ok(("w", "x", 1), ("r", "x", 1)),
        ok(("r", "x", 1), ("r", "y", None)),
    ]
    assert judged(txns, "multi-register").valid is True
    assert judged(txns, 'multi-register={"x": 5}').valid is True
    assert judged(txns, "multi-register={}").valid is False
    assert judged(txns, 'multi-register={"x": 5, "y": 0}').valid is False
    assert judged([ok(("r", "x", 5)), ok(("r", "x", 4))], "multi-register").valid is False


def test_a_transaction_of_registers_sees_its_own_writes() -> None:
    assert judged([ok(("w", "x", 1), ("r", "x", 2))], "multi-register").valid is False
    verdict = judged([ok(("write", "x", 1), ("read", "x", 1)), ok(("r", "x", 1))], "multi-register")
    assert (verdict.valid, verdict.model) == (True, "multi-register")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("multi-register=[1]", "are no JSON object of registers"),
        ("multi-register=x", "is not JSON"),
        ("multi-registr={}", "did you mean multi-register"),
        ("rw-register=serial", "did you mean serializable"),
    ],
)
def test_a_parameter_that_is_none_is_an_error_that_helps(model: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        judged([ok(("r", "x", 5))], model)


def test_other_transactions_are_an_error_of_the_model() -> None:
    with pytest.raises(HistoryError, match="'append' is no micro-operation of the model multi-reg"):
        judged([ok(("append", "x", 5))], "multi-register")
    with pytest.raises(HistoryError, match="event 0: a transaction of the model long-fork is one"):
        judged([ok(("w", "x", 5), ("r", "y", None))], "long-fork")


def test_the_anomalies_and_the_doubts_of_long_fork() -> None:
    fork = [ok(("r", "x", 1), ("r", "y", None)), ok(("r", "y", 1), ("r", "x", None))]
    writes = [ok(("w", "x", 1)), ok(("w", "y", 1))]
    verdict = judged(writes + fork, "long-fork")
    assert (verdict.valid, names(verdict)) == (False, ["long-fork"])
    assert [op["role"] for op in verdict.results[0].witnesses[0]["ops"]] == [
        "read x without y",
        "read y without x",
        "write",
        "write",
    ]
    verdict = judged(fork, "long-fork")
    assert (verdict.valid, names(verdict)) == (False, ["long-fork", "unwritten-read"])
    verdict = judged([Txn("fail", [("w", "x", 1)]), fork[0]], "long-fork")
    assert (verdict.valid, names(verdict)) == (False, ["G1a"])
    verdict = judged([*writes, ok(("w", "x", 2)), *fork], "long-fork")
    assert (verdict.valid, names(verdict)) == ("unknown", [])
    assert verdict.unknown_because == ["a key was written more than once: 1 (x)"]
    verdict = judged([*fork, ok(("r", "x", 2))], "long-fork")
    assert verdict.unknown_because == ["a key was read with more than one value: 1 (x)"]
    apart = [ok(("r", "x", 1), ("r", "y", None)), ok(("r", "y", 1), ("r", "z", None))]
    assert judged([*writes, *apart], "long-fork").valid is True


def test_reads_of_a_group_of_keys_fork_if_and_only_if_they_have_no_order() -> None:
    counts = {True: 0, False: 0}
    first = dict.fromkeys("xyz")
    for seed in range(tries(400)):
        txns = some_group_reads(random.Random(seed))
        expected = has_serial_order(txns, first=first)
        verdict = judged(txns, "long-fork")
        assert verdict.valid is expected, (seed, txns)
        assert [result.name for result in verdict.results] == ["long-fork"] * (not expected)
        if all(txn.outcome == "ok" for txn in txns):
            assert judged(txns, "rw-register").valid is expected, (seed, txns)
        counts[expected] += 1
    assert min(counts.values()) > tries(400) // 10


@pytest.mark.parametrize(
    "model",
    [
        "rw-register",
        "rw-register=strict-serializable",
        "multi-register",
        'multi-register={"h0-x": 1}',
        "long-fork",
    ],
)
def test_transactions_in_parts_have_the_verdict_of_the_whole(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(40)
    if model == "long-fork":
        drawn = [some_group_reads(random.Random(seed)) for seed in seeds]
    else:
        drawn = [of_registers(some_overlapping_txns(random.Random(seed))) for seed in seeds]
    table = apart([table_of_txns(txns) for txns in drawn])
    file = tmp_path / "history.parquet"
    pq.write_table(table, file, row_group_size=7)
    monkeypatch.setattr(row_groups, "ROWS_PER_CHUNK", 5)
    groups = find_row_groups(HistorySource(file))
    assert groups is not None
    monkeypatch.setattr(local, "MICRO_PER_PART", groups.micro // 3)
    verdict = check_in_parts(groups, find_checker(model))
    same(verdict, check_history(table, model))
    assert verdict.valid is False
