"""Verdicts compared with plain definitions, on random worlds and their mutations."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from quorumlog.chaos.checkers import check_history
from tests.support.chaos.hand_made_histories import Op
from tests.support.chaos.one_log import STRANGE, World
from tests.support.sizes import tries

CASES = 400
Mutate = Callable[[list[Op], random.Random], object]


def ended(op: Op) -> int:
    """Return when an operation of a world ended: each of them does."""
    assert op.end_ns is not None
    return op.end_ns


# --- mutations of the log, for every world ---


def some_micro(ops: Sequence[Op], rng: random.Random, *fs: str) -> tuple[Op, int] | None:
    """Return a micro-operation of these names, as an operation and a place in it."""
    places = [
        (op, place)
        for op in ops
        for place, micro in enumerate(op.micros)
        if op.outcome == "ok" and (micro.f or op.f) in fs
    ]
    return rng.choice(places) if places else None


def change(found: tuple[Op, int] | None, **fields: Any) -> None:
    if found is not None:
        op, place = found
        op.micros[place] = op.micros[place]._replace(**fields)


def drop(found: tuple[Op, int] | None) -> None:
    if found is not None:
        del found[0].micros[found[1]]


def a_phantom_in_the_end(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "final_poll"), value=STRANGE)


def lost_in_the_end(ops: list[Op], rng: random.Random) -> None:
    drop(some_micro(ops, rng, "final_poll"))


def the_end_is_lost(ops: list[Op], rng: random.Random) -> None:
    for op in ops:
        if op.f == "final_poll":
            del op.micros[-1:]
        elif op.f == "final_end":
            op.micros = [one._replace(offset=max(one.offset - 1, 0)) for one in op.micros]


def a_refused_record(ops: list[Op], rng: random.Random) -> None:
    sent = [op for op in ops if op.f == "send" and op.outcome == "ok"]
    if sent:
        op = rng.choice(sent)
        op.outcome = "fail"
        op.micros = [one._replace(offset=-1) for one in op.micros]


def one_record_twice(ops: list[Op], rng: random.Random) -> None:
    """The log has one value of itself again at its end."""
    [final], [end] = ([op for op in ops if op.f == f] for f in ("final_poll", "final_end"))
    if final.micros:
        last = end.micros[0].offset
        final.micros.append(rng.choice(final.micros)._replace(offset=last))
        end.micros = [end.micros[0]._replace(offset=last + 1)]


def acknowledged_at_another_offset(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "send"), offset=rng.randrange(6))


OF_LOGS: tuple[Mutate, ...] = (
    a_phantom_in_the_end,
    lost_in_the_end,
    the_end_is_lost,
    a_refused_record,
    one_record_twice,
    acknowledged_at_another_offset,
)


def agree(
    make: Callable[[random.Random], World],
    broken: Callable[[Sequence[Op]], bool],
    model: str,
    mutations: Sequence[Mutate],
) -> None:
    """Compare verdicts and definitions; each mutation must break something now and then."""
    hits, legal = Counter[str](), 0
    for seed in range(tries(CASES)):
        rng = random.Random(seed)
        world = make(rng)
        assert not broken(world.ops), seed
        verdict = check_history(world.table(), model)
        assert verdict.valid is not False, (seed, verdict.as_json())
        legal += verdict.valid is True
        mutate = mutations[seed % len(mutations)]
        mutate(world.ops, rng)
        expected = broken(world.ops)
        verdict = check_history(world.table(), model)
        name = mutate.__name__
        assert (verdict.valid is False) == expected, (seed, name, world.ops, verdict.as_json())
        hits[name] += expected
    assert all(hits[mutate.__name__] for mutate in mutations), hits
    assert legal > tries(CASES) // 3
