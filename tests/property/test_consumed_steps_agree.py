"""Verdicts on offsets in transactions are those of their plain definition.

As for groups and lookups: see `test_views_agree`.
"""

import random
from collections import Counter
from collections.abc import Sequence

from quorumlog.chaos.history import Message
from tests.support.chaos.agreement import OF_LOGS, agree, change, ended, some_micro
from tests.support.chaos.hand_made_histories import Op
from tests.support.chaos.one_log import KEY, World, breaks_the_log, micros_of


def some_steps(rng: random.Random) -> World:
    """Workers consume the log in transactions, one after the other, from the group's offset."""
    world = World(rng)
    committed, worker = 0, 10
    for _ in range(rng.randrange(6, 18)):
        kind = rng.random()
        if kind < 0.4 or len(world.log) <= committed:
            world.send(rng.randrange(2))
        elif kind < 0.8:
            after = rng.randrange(committed + 1, len(world.log) + 1)
            outcome = rng.choices(["ok", "info", "fail"], [7, 1, 2])[0]
            consume(world, worker, committed, after, outcome)
            worker += 1
            if outcome == "ok" or (outcome == "info" and rng.random() < 0.5):
                committed = after
        else:
            world.act(worker, "committed", [Message(KEY, committed or -1, 0)])
            worker += 1
    if committed < len(world.log):
        consume(world, worker, committed, len(world.log), "ok")
    world.read_all()
    world.widen()
    return request_commits(world)


def consume(world: World, worker: int, first: int, after: int, outcome: str) -> None:
    world.act(worker, "assign", [Message(KEY, -1, 0)])
    world.act(worker, "seek", [Message(KEY, first, 0)])
    polled = [Message(KEY, at, world.log[at], f="poll") for at in range(first, after)]
    world.act(worker, "txn", [*polled, Message(KEY, after, 0, f="offsets")], outcome)


def request_commits(world: World) -> World:
    """Let transactions that may be committed record when that was requested: before the moment."""
    for op in world.ops:
        if op.f == "txn" and op.outcome != "fail":
            asked_ns = world.rng.randrange(op.start_ns, (op.start_ns + ended(op)) // 2 + 1)
            op.micros.append(Message("", -1, asked_ns, f="commit"))
    return world


def breaks_steps(ops: Sequence[Op]) -> bool:
    if breaks_the_log([op if op.f != "txn" else as_polls(op) for op in ops]):
        return True
    txns = [op for op in ops if op.f == "txn"]
    sure, doubt = (
        [*map(step_of, [op for op in txns if op.outcome == one])] for one in ("ok", "info")
    )
    consumed = Counter(at for step in sure for at in step)
    if max(consumed.values(), default=0) > 1:
        return True
    covered = {*consumed, *(at for step in doubt for at in step)}
    if {*range(max((step.stop for step in sure), default=0))} - covered:
        return True
    return any(is_no_offset(op, one.offset, txns) for op, one in micros_of(ops, "committed"))


def as_polls(op: Op) -> Op:
    """Return the polls of a transaction as a poll: of an unknown one they prove nothing alone."""
    polls = [one for one in op.micros if one.f == "poll"]
    return Op(op.process, "poll", op.start_ns, ended(op), op.outcome, micros=polls)


def step_of(op: Op) -> range:
    after = next(one.offset for one in op.micros if one.f == "offsets")
    return range(min([one.offset for one in op.micros if one.f == "poll"], default=after), after)


def is_no_offset(answered: Op, offset: int, txns: Sequence[Op]) -> bool:
    """Return whether the group's offset was surely another one at any time of the question."""
    low = high = -1
    for op in txns:
        after = step_of(op).stop
        asked = [one.value for one in op.micros if one.f == "commit"]
        if op.outcome == "ok" and ended(op) < answered.start_ns:
            low = max(low, after)
        if op.outcome != "fail" and max([op.start_ns, *asked]) <= ended(answered):
            high = max(high, after)
    return not low <= offset <= high


def a_step_begins_earlier(ops: list[Op], rng: random.Random) -> None:
    found = some_micro(ops, rng, "offsets")
    if found is not None:
        first = min((one.offset for one in found[0].micros if one.f == "poll"), default=0)
        read = {one.offset: one.value for _, one in micros_of(ops, "final_poll")}
        if first - 1 in read:
            found[0].micros.insert(0, Message(KEY, first - 1, read[first - 1], f="poll"))


def a_step_leaves_one_out(ops: list[Op], rng: random.Random) -> None:
    found = some_micro(ops, rng, "offsets")
    if found is not None and found[0].micros[0].f == "poll":
        del found[0].micros[0]


def another_offset_of_the_group(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "committed"), offset=rng.randrange(-1, 6))


def a_commit_is_requested_late(ops: list[Op], rng: random.Random) -> None:
    txns = [op for op in ops if op.f == "txn" and op.micros[-1].f == "commit"]
    if txns:
        op = rng.choice(txns)
        op.micros[-1] = op.micros[-1]._replace(value=ended(op) + 2_000)


def a_committed_step_failed(ops: list[Op], rng: random.Random) -> None:
    txns = [op for op in ops if op.f == "txn" and op.outcome == "ok"]
    if txns:
        op = rng.choice(txns)
        op.outcome = "fail"
        op.micros = [one for one in op.micros if one.f != "commit"]


def test_offsets_in_transactions_agree_with_their_definition() -> None:
    mutations = a_step_begins_earlier, a_step_leaves_one_out, another_offset_of_the_group
    others = a_commit_is_requested_late, a_committed_step_failed
    agree(some_steps, breaks_steps, "kafka_log", (*OF_LOGS, *mutations, *others))
