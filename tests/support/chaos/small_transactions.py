"""A few small transactions, drawn at random, and a search through all their orders."""

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.history import Message, Operation
from quorumlog.chaos.history.operations_table import table_of

LISTS = ("x", "y")


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
    return check_history(table_of_txns(txns), model)


def table_of_txns(txns: list[Txn]) -> pa.Table:
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
    return table_of(events)


def messages_of(txn: Txn) -> tuple[Message, ...]:
    return tuple(
        Message(name, -1, value, "", f)
        if isinstance(value, int)
        else Message(name, -1, 0, json.dumps(value, separators=(",", ":")), f)
        for f, name, value in txn.micros
    )


def has_serial_order(
    txns: list[Txn],
    allowed: Callable[[Sequence[Txn]], bool] = lambda _: True,
    first: Mapping[str, Any] | None = None,
) -> bool:
    """Try all allowed orders of what succeeded, with any of what is of unknown outcome.

    `first`: the first values; without it, () of lists, and None of registers.
    """
    known = [txn for txn in txns if txn.outcome == "ok"]
    unknown = [txn for txn in txns if txn.outcome == "info"]
    return any(
        allowed(order) and explains(order, first)
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
        for order in itertools.permutations([*known, *chosen])
    )


def is_in_real_time(order: Sequence[Txn]) -> bool:
    """Tell whether no transaction stands before another one that ended before it began."""
    begun = -math.inf
    for txn in order:
        assert txn.moments is not None
        if txn.outcome == "ok" and txn.moments[1] < begun:
            return False
        begun = max(begun, txn.moments[0])
    return True


def explains(order: tuple[Txn, ...], first: Mapping[str, Any] | None) -> bool:
    is_lists = not any(f == "w" or value is None for txn in order for f, _, value in txn.micros)
    state: dict[str, Any] = {**(first or dict.fromkeys(LISTS, () if is_lists else None))}
    for txn in order:
        for f, name, value in txn.micros:
            if f == "append":
                state[name] = (*state[name], value)
            elif f == "w":
                state[name] = value
            elif txn.outcome == "ok" and state[name] != value:
                return False
    return True


def some_overlapping_txns(rng: random.Random) -> list[Txn]:
    return some_moments(some_txns(rng), rng)


def some_moments(txns: list[Txn], rng: random.Random) -> list[Txn]:
    """Give transactions moments: in their order, more or less."""
    width = rng.choice([2, 8, 30])
    drawn = [(10 * n + rng.randint(-width, width), rng.randint(1, width)) for n in range(len(txns))]
    moments = sorted({time for start, length in drawn for time in (start, start + length)})
    place = 2 * len(txns)  # of each moment: no two events have the same
    for number, (txn, (start, length)) in enumerate(zip(txns, drawn, strict=True)):
        first, last = moments.index(start), moments.index(start + length)
        txn.moments = (place * first + number, place * last + number + len(txns))
    return txns


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


def some_group_reads(rng: random.Random) -> list[Txn]:
    """Return writes of three keys, once each, and reads of all of them: snapshots, more or less."""
    keys = ["x", "y", "z"]
    rng.shuffle(keys)
    txns = [Txn(rng.choice(["ok", "ok", "info"]), [("w", key, 1)]) for key in keys]
    for _ in range(rng.randint(1, 4)):
        seen = {*keys[: rng.randint(0, 3)]}
        if rng.random() < 0.3:
            seen ^= {rng.choice(keys)}
        order = rng.sample(keys, 3)
        txns.append(Txn("ok", [("r", key, 1 if key in seen else None) for key in order]))
    rng.shuffle(txns)
    return txns


def has_snapshot_order(txns: list[Txn]) -> bool:
    """Try all orders of begins and commits: reads see a snapshot, and the first to commit wins."""
    known = [txn for txn in txns if txn.outcome == "ok"]
    unknown = [txn for txn in txns if txn.outcome == "info"]
    return any(
        _commits((*known, *chosen), dict.fromkeys(LISTS, ()), {})
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
    )


def _commits(
    left: tuple[Txn, ...], state: Mapping[str, Any], begun: Mapping[int, Mapping[str, Any]]
) -> bool:
    """Return whether all can commit. `begun`: by place in `left`, the lists as they are now.

    A list of a transaction that has begun is missing in `begun` if another one has changed it.
    """
    if not left:
        return True
    for place, txn in enumerate(left):
        if place not in begun:
            after = after_reads(txn, state)
            if after is not None and _commits(left, state, {**begun, place: after}):
                return True
            continue
        written = {name for f, name, _ in txn.micros if f == "append"}
        if not written <= begun[place].keys():
            continue  # another one was the first
        changed = {**state, **{name: begun[place][name] for name in written}}
        others = {
            other - (other > place): {n: v for n, v in lists.items() if n not in written}
            for other, lists in begun.items()
            if other != place
        }
        if _commits(left[:place] + left[place + 1 :], changed, others):
            return True
    return False


def after_reads(txn: Txn, snapshot: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the lists after a transaction on a snapshot, or None if it read others."""
    lists = {**snapshot}
    for f, name, value in txn.micros:
        if f == "append":
            lists[name] = (*lists[name], value)
        elif txn.outcome == "ok" and lists[name] != value:
            return None
    return lists
