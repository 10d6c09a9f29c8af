"""Small random histories of one register, and a search through all orders of their operations."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quorumlog.chaos.checkers.model import Call
from quorumlog.chaos.checkers.wgl import Timed
from quorumlog.chaos.checkers.zones import CAS, OPEN, READ, WRITE, Registers

INITIAL = 0
_FS = {READ: "read", WRITE: "write", CAS: "cas"}


@dataclass
class Op:
    """`seen` is read or replaced, `made` is written; `completed` is OPEN: of unknown outcome."""

    kind: int
    seen: int
    made: int
    invoked: int
    completed: int


def random_history(seed: int, *, longest: int, is_unique: bool = True) -> list[Op]:
    """Return operations of up to five clients; most values seen were written before."""
    rng = random.Random(seed)
    clients = [0] * rng.randint(1, 5)
    made, ops = [INITIAL], []
    unknown, stranger = rng.choice([0, 0.1, 0.4]), rng.choice([0, 0.05])
    for number in range(1, rng.randint(1, longest) + 1):
        client = min(range(len(clients)), key=lambda at: (clients[at], rng.random()))
        invoked = clients[client] + rng.randint(1, 3)
        completed = clients[client] = invoked + rng.randint(1, 8)
        kind = rng.choice([READ, READ, WRITE, CAS])
        is_unknown = rng.random() < unknown
        if kind == READ and is_unknown:
            continue
        seen = rng.choice(made) if rng.random() >= stranger else number + 2
        new = number if is_unique else rng.randint(0, 2)
        if kind == CAS and rng.random() < 0.05:
            new = seen
        if kind != READ:
            made.append(new)
        ops.append(Op(kind, seen, new, invoked, OPEN if is_unknown else completed))
    return in_order(ops, rng)


def in_order(ops: list[Op], rng: random.Random) -> list[Op]:
    """Number the moments, so that no two are equal."""
    moments = [(op.invoked, rng.random(), op, "invoked") for op in ops]
    moments += [(op.completed, rng.random(), op, "completed") for op in ops if op.completed < OPEN]
    for number, (_, _, op, name) in enumerate(sorted(moments, key=lambda one: one[:2])):
        setattr(op, name, number)
    return ops


def registers(ops: Sequence[Op], *, initial: int = INITIAL) -> Registers:
    """Return the columns that `zones` takes, all of one key."""
    columns = {
        name: np.array([getattr(op, name) for op in ops], np.int64)
        for name in ("seen", "made", "invoked", "completed")
    }
    kind = np.array([op.kind for op in ops], np.int8)
    return Registers(key=np.zeros(len(ops), np.int64), kind=kind, initial=initial, **columns)


def timed(ops: Sequence[Op]) -> list[Timed]:
    """Return the input of `wgl`."""
    return [
        Timed(
            Call(
                f=_FS[op.kind],
                values={READ: (op.seen,), WRITE: (op.made,), CAS: (op.seen, op.made)}[op.kind],
                is_known=op.completed < OPEN,
            ),
            op.invoked,
            None if op.completed == OPEN else op.completed,
        )
        for op in ops
    ]


def has_an_order(ops: Sequence[Op]) -> bool:
    """Try all orders that keep real time; operations of unknown outcome may be left out."""

    def goes_on(value: int, left: tuple[Op, ...]) -> bool:
        known = [op for op in left if op.completed < OPEN]
        if not known:
            return True
        first_end = min(op.completed for op in known)
        return any(
            goes_on(op.seen if op.kind == READ else op.made, (*left[:at], *left[at + 1 :]))
            for at, op in enumerate(left)
            if op.invoked < first_end and (op.kind == WRITE or op.seen == value)
        )

    return goes_on(INITIAL, tuple(ops))
