"""Seeded histories of no cluster at all: small, dense, and mostly wrong, in every way at once."""

import random

from quorumlog.chaos.history import Message
from tests.support.chaos.hand_made_histories import Op, Row

KEYS = ("k-0", "k-1")


def wild(seed: int) -> list[Op]:
    """Draw a history that fits the model and keeps no other promise; some begin orderly."""
    rng = random.Random(seed)
    ops: list[Op] = []
    log: dict[str, list[int]] = {key: [] for key in KEYS}
    now = value = 0
    disorder = rng.choice([0.0, 0.02, 0.1, 0.5])
    busy: dict[int, int] = {}
    for _ in range(rng.randrange(1, 22)):
        process = rng.randrange(4)
        start = max(now - rng.randrange(4), busy.get(process, 0))
        end = start + rng.randrange(1, 6)
        busy[process], now = end, max(now, end)
        if rng.random() < 0.55:
            op = Op(process, "send", start, end, rng.choices(["ok", "info", "fail"], [7, 2, 1])[0])
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                value = value + 1 if rng.random() > disorder / 4 else max(1, value)
                op.messages.append(
                    _sent(op.outcome, rng.choice(KEYS), value, log, rng=rng, disorder=disorder)
                )
        elif rng.random() < 0.65:
            op = Op(process, "poll", start, end, rng.choices(["ok", "info", "fail"], [9, 1, 1])[0])
            if op.outcome == "ok" or rng.random() < disorder:
                op.messages = _polled(log, rng, disorder, value)
            op.details = "rebalanced" if rng.random() < 0.1 else ""
        else:
            f = rng.choice(["assign", "subscribe", "seek", "crash"])
            keys = rng.sample(KEYS, rng.randrange(3))
            op = Op(process, f, start, end, rng.choices(["ok", "info", "fail"], [7, 2, 1])[0])
            op.messages = [(key, -1, 0) for key in keys]
        ops.append(op)
    ops += _finals(log, now, rng, disorder)
    if rng.random() < disorder / 8:
        ops.append(Op(-1, "node-ended", now, None, node="1"))
    return ops


def _sent(
    outcome: str,
    key: str,
    value: int,
    log: dict[str, list[int]],
    *,
    rng: random.Random,
    disorder: float,
) -> Row:
    there = outcome == "ok" or (outcome == "info" and rng.random() < 0.5)
    if there and rng.random() >= disorder / 2:  # else it is lost
        log[key].append(value)
    if outcome == "fail" or (outcome == "info" and rng.random() < 0.8):
        return key, -1, value
    if rng.random() < disorder:
        return key, rng.choice([-1, 0, len(log[key])]), value
    return key, log[key].index(value) if value in log[key] else len(log[key]), value


def _polled(
    log: dict[str, list[int]], rng: random.Random, disorder: float, value: int
) -> list[Row]:
    rows: list[Row] = []
    for key in rng.sample(KEYS, rng.randrange(3)):
        low = rng.randrange(len(log[key]) + 1)
        rows += [
            (key, low + n, there)
            for n, there in enumerate(log[key][low : low + rng.randrange(1, 5)])
        ]
    if rng.random() < disorder:
        rng.shuffle(rows)
    if rng.random() < disorder and rows:
        rows.pop(rng.randrange(len(rows)))
    if rng.random() < disorder:
        rows.append((rng.choice(KEYS), rng.randrange(-1, 5), rng.randrange(value + 2)))
    return rows


def _finals(log: dict[str, list[int]], now: int, rng: random.Random, disorder: float) -> list[Op]:
    ops: list[Op] = []
    start = now + rng.randrange(-6, 6) if rng.random() < disorder else now + 5
    start = max(start, 0)
    for key in KEYS:
        if rng.random() < 0.1:
            continue
        upto = len(log[key]) if rng.random() < 0.8 else rng.randrange(len(log[key]) + 1)
        rows = [(key, n, value) for n, value in enumerate(log[key][:upto])]
        while rows and rng.random() < disorder / 2:
            rows.pop(rng.randrange(len(rows)))
        if rng.random() < disorder / 4:
            ops.append(Op(9, "seek", start, start + 1, "ok", [(key, -1, 0)]))
            start += 1
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            ops.append(Op(9, "final_poll", start, start + 1, "ok", part))
            start += 1
        if rng.random() < 0.7:
            end = upto if rng.random() >= disorder else rng.randrange(upto + 2)
            ops.append(Op(9, "final_end", start, start + 1, "ok", [(key, end, 0)]))
            start += 1
    return ops


def with_transactions(ops: list[Op], seed: int) -> list[Op]:
    """Make some sends transactions, which poll records of other operations, too."""
    rng = random.Random(f"transactions of {seed}")
    known = [row for op in ops for row in op.messages if op.f in ("send", "poll") and row[1] >= 0]
    for op in ops:
        if op.f == "send" and rng.random() < 0.4:
            op.f = "txn"
            polled = rng.sample(known, min(len(known), rng.randrange(3)))
            op.micros = [Message(*row, f="send") for row in op.messages]
            op.micros += [Message(*row, f="poll") for row in polled]
    return ops
