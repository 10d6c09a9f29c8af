"""Verdicts on groups and lookups are those of their plain definitions.

Random worlds keep all promises; their histories are valid. Then a mutation changes an operation:
the verdict is invalid if and only if a promise, as it is documented, is broken. The definitions
compare every pair of operations, and share no line with the checkers.
"""

import random
from collections.abc import Sequence

from quorumlog.chaos.history import Message
from tests.support.chaos.agreement import OF_LOGS, Mutate, agree, change, drop, ended, some_micro
from tests.support.chaos.hand_made_histories import Op
from tests.support.chaos.one_log import (
    FINAL_READER,
    KEY,
    STRANGE,
    World,
    breaks_the_log,
    is_read_to_the_end,
    micros_of,
)

# --- groups ---


def a_group(rng: random.Random) -> World:
    """Members own the only key in turn; each begins at the committed offset."""
    world = World(rng)
    committed = generation = 0
    owner, position, has_joined = -1, 0, False
    next_member = 10
    for _ in range(rng.randrange(6, 20)):
        kind = rng.random()
        if kind < 0.35 or not world.log:
            world.send(rng.randrange(2))
        elif owner < 0 or kind < 0.45:
            world.act(next_member, "join")
            owner, next_member, has_joined = next_member, next_member + 1, True
            generation += 1
        elif kind < 0.75:
            records, end = list[Message](), min(len(world.log), position + rng.randrange(4))
            if has_joined:
                position, has_joined = committed, False
                end = min(len(world.log), position + rng.randrange(4))
                records.append(Message(KEY, -1, generation, f="assigned"))
            records += [
                Message(KEY, at, world.log[at], f="group_poll") for at in range(position, end)
            ]
            position = max(position, end)
            world.act(owner, "group_poll", records)
        elif kind < 0.9 and not has_joined and position:
            outcome = rng.choices(["ok", "info", "fail"], [8, 1, 1])[0]
            world.act(owner, "commit", [Message(KEY, position, generation)], outcome)
            if outcome == "ok" or (outcome == "info" and rng.random() < 0.5):
                committed = position
        else:
            world.act(owner, "committed", [Message(KEY, committed or -1, 0)])
    if rng.random() < 0.8:
        drain(world, next_member, generation + 1, committed)
    world.read_all()
    world.widen()
    return world


def drain(world: World, member: int, generation: int, committed: int) -> None:
    """Let a last member receive the rest, and commit the end."""
    rest = [
        Message(KEY, at, world.log[at], f="group_poll") for at in range(committed, len(world.log))
    ]
    world.act(member, "join")
    world.act(member, "group_poll", [Message(KEY, -1, generation, f="assigned"), *rest])
    if world.log:
        world.act(member, "commit", [Message(KEY, len(world.log), generation)])
        world.act(member, "committed", [Message(KEY, len(world.log), 0)])


def breaks_a_group(ops: Sequence[Op]) -> bool:
    return breaks_the_log(ops) or any(
        rule(ops) for rule in (_unlike, _skips, _undelivered, _forgets, _ahead, _zombies, _resumes)
    )


def _unlike(ops: Sequence[Op]) -> bool:
    """A delivered record is not that which was acknowledged there."""
    acked = {one.offset: one.value for _, one in micros_of(ops, "send")}
    acked |= {m.offset: m.value for op in ops if op.outcome == "info" and op.f == "send"
              for m in op.micros if m.offset >= 0}  # fmt: skip
    got = {one.offset: one.value for _, one in micros_of(ops, "group_poll")}
    return any(acked.get(at, value) != value for at, value in got.items())


def _commits(ops: Sequence[Op]) -> list[tuple[Op, Message]]:
    """Return the commits and the answers that prove a committed offset."""
    return [(op, one) for op, one in micros_of(ops, "commit", "committed") if one.offset >= 0]


def _skips(ops: Sequence[Op]) -> bool:
    last: dict[int, int | None] = {}
    for op, one in micros_of(ops, "assigned", "group_poll"):
        if one.f == "assigned":
            last[op.process] = None
            continue
        before = last.get(op.process)
        if before is not None and one.offset != before + 1:
            return True
        last[op.process] = one.offset
    return False


def _undelivered(ops: Sequence[Op]) -> bool:
    passed = max((one.offset for _, one in _commits(ops)), default=0)
    got = {one.offset for _, one in micros_of(ops, "group_poll")}
    ends = [one.offset for _, one in micros_of(ops, "final_end")]
    acked = {one.offset for _, one in micros_of(ops, "send")}
    return any(at < passed and at not in got and at < ends[-1] for at in acked)


def _forgets(ops: Sequence[Op]) -> bool:
    """An answer is below a commit before it, and no later one is as high; or a commit goes back."""
    for answer, told in micros_of(ops, "committed"):
        before = [one.offset for op, one in _commits(ops) if ended(op) < answer.start_ns]
        later = [one.offset for op, one in _commits(ops) if op.start_ns > ended(answer)]
        if told.offset < max(before, default=-1) and max(later, default=-1) < max(before):
            return True
    commits = [*micros_of(ops, "commit")]
    return any(
        ended(one) < other.start_ns and told.offset > after.offset
        for one, told in commits
        for other, after in commits
    )


def _ahead(ops: Sequence[Op]) -> bool:
    tried = [
        (op, one) for op in ops for one in op.micros if op.f == "commit" and op.outcome != "fail"
    ]
    return any(
        told.offset
        > max((one.offset for op, one in tried if op.start_ns < ended(answer)), default=0)
        for answer, told in micros_of(ops, "committed")
    )


def _polls_before(ops: Sequence[Op], poll: Op) -> int:
    """Return the end of the last poll or join of the member before this poll."""
    ends = [
        ended(op)
        for op in ops
        if op.process == poll.process
        and op.f in ("group_poll", "join")
        and op.start_ns < poll.start_ns
    ]
    return max(ends, default=poll.start_ns)


def _zombies(ops: Sequence[Op]) -> bool:
    """Generations go back, or have two owners, or an old one commits."""
    owned = [*micros_of(ops, "assigned")]
    for poll, one in owned:
        for other, also in owned:
            since = _polls_before(ops, poll)
            if ended(other) < since and also.value > one.value:
                return True
            if also.value == one.value and other.process != poll.process:
                lives = [[op for op in ops if op.process == who.process] for who in (poll, other)]
                first, second = sorted(lives, key=lambda life: life[0].start_ns)
                if (
                    ended(first[-1]) > second[0].start_ns
                    or len({p.process for p, m in owned if m.value == one.value}) > 2
                ):
                    return True
    return any(
        ended(poll) < commit.start_ns and one.value > told.value >= 0
        for commit, told in micros_of(ops, "commit")
        for poll, one in owned
    )


def _resumes(ops: Sequence[Op]) -> bool:
    """The first record after an assignment is at no offset that may have been committed."""
    assigned: dict[int, Op | None] = {}
    for op, one in micros_of(ops, "assigned", "group_poll"):
        if one.f == "assigned":
            assigned[op.process] = op
        elif (poll := assigned.pop(op.process, None)) is not None:
            since = _polls_before(ops, poll)
            low = [told.offset for by, told in _commits(ops) if ended(by) < since]
            high = [
                told.offset
                for by in ops
                for told in by.micros
                if by.f == "commit" and by.outcome != "fail" and by.start_ns < ended(op)
            ]
            if not max(low, default=0) <= one.offset <= max(high, default=0):
                return True
    return False


def another_is_delivered(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "group_poll"), value=rng.choice([STRANGE, 0, 1]))


def a_delivery_is_left_out(ops: list[Op], rng: random.Random) -> None:
    drop(some_micro(ops, rng, "group_poll"))


def another_offset_is_answered(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "committed"), offset=rng.randrange(-1, 5))


def another_offset_is_committed(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "commit"), offset=rng.randrange(6))


def another_generation(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "assigned", "commit"), value=rng.randrange(1, 4))


OF_GROUPS: tuple[Mutate, ...] = (
    another_is_delivered,
    a_delivery_is_left_out,
    another_offset_is_answered,
    another_offset_is_committed,
    another_generation,
)


def test_groups_agree_with_their_definition() -> None:
    agree(a_group, breaks_a_group, "group_log", (*OF_LOGS, *OF_GROUPS))


# --- lookups ---

FIRST_TIME = 100


def some_lookups(rng: random.Random) -> World:
    """Producers send records whose values are times; others look up ends and times."""
    world = World(rng)
    times = [*range(FIRST_TIME, FIRST_TIME + 40, 2)]
    rng.shuffle(times)
    floor: dict[int, int] = {}  # by client: the least end that it may receive
    for _ in range(rng.randrange(5, 16)):
        if rng.random() < 0.5 or not world.log:
            world.send(rng.randrange(2), times.pop())
        else:
            look_up(world, 10 + rng.randrange(2), "list_offsets", floor)
    world.read_all()
    world.act(FINAL_READER + 1, "final_list_offsets", [Message(KEY, 0, 0, f="earliest")])
    for _ in range(6):
        look_up(world, FINAL_READER + 1, "final_list_offsets", floor)
    world.widen()
    return world


def look_up(world: World, client: int, f: str, floor: dict[int, int]) -> None:
    """Answer from the log, or now and then as a replaced leader does, from a prefix of it."""
    rng, length = world.rng, len(world.log)
    if f == "list_offsets" and rng.random() < 0.2:
        length = rng.randrange(floor.get(client, 0), length + 1)
    log = world.log[:length]
    kind = rng.choice(["earliest", "latest", "by_time", "max_timestamp"])
    if kind == "earliest":
        micros = [Message(KEY, 0, 0, f=kind)]
    elif kind == "latest":
        floor[client] = max(floor.get(client, 0), length)
        micros = [Message(KEY, length, 0, f=kind)]
    else:
        wanted = rng.randrange(FIRST_TIME - 2, FIRST_TIME + 44)
        least = max(log, default=0) if kind == "max_timestamp" else wanted
        named = [(at, time) for at, time in enumerate(log) if time >= least]
        at, time = named[0] if named else (-1, -1)
        micros = [Message(KEY, at, 0 if kind == "max_timestamp" else wanted, f=kind)]
        micros.append(Message(KEY, at, time, f="found"))
    world.act(client, f, micros)


def breaks_lookups(ops: Sequence[Op]) -> bool:
    if breaks_the_log(ops) or not is_read_to_the_end(ops):
        return breaks_the_log(ops)
    log = {one.offset: one.value for _, one in micros_of(ops, "final_poll")}
    [end] = [one.offset for _, one in micros_of(ops, "final_end")]
    times = [log[at] for at in range(end)]
    ends: dict[int, int] = {}
    for op in sorted(ops, key=lambda op: op.start_ns):
        for micro, found in zip(op.micros, [*op.micros[1:], None], strict=True):
            if micro.f == "latest":
                if micro.offset < ends.get(op.process, 0):
                    return True
                ends[op.process] = micro.offset
            if is_wrong(micro, found, times, is_final=op.f.startswith("final")):
                return True
    return False


def is_wrong(micro: Message, found: Message | None, times: list[int], *, is_final: bool) -> bool:
    """Return whether no prefix of the log has this answer; at last, whether the log has not."""
    prefixes = [times] if is_final else [times[:length] for length in range(len(times) + 1)]
    match micro.f:
        case "earliest":
            return micro.offset != 0
        case "latest":
            return all(len(prefix) != micro.offset for prefix in prefixes)
        case "by_time" | "max_timestamp":
            assert found is not None
            told = micro.offset, (found.value if micro.offset >= 0 else -1)
            return all(answer(micro, prefix) != told for prefix in prefixes)
        case _:
            return False


def answer(micro: Message, log: Sequence[int]) -> tuple[int, int]:
    least = max(log, default=0) if micro.f == "max_timestamp" else micro.value
    return next(((at, time) for at, time in enumerate(log) if time >= least), (-1, -1))


def another_end(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "latest"), offset=rng.randrange(10))


def another_start(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "earliest"), offset=rng.randrange(2))


def another_record_is_named(ops: list[Op], rng: random.Random) -> None:
    found = some_micro(ops, rng, "by_time", "max_timestamp")
    if found is not None:
        op, place = found
        at = rng.randrange(-1, 8)
        read = {one.offset: one.value for _, one in micros_of(ops, "final_poll")}
        op.micros[place] = op.micros[place]._replace(offset=at)
        op.micros[place + 1] = op.micros[place + 1]._replace(offset=at, value=read.get(at, -1))


def another_time_is_named(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "found"), value=FIRST_TIME + rng.randrange(40))


def another_time_in_the_log(ops: list[Op], rng: random.Random) -> None:
    change(some_micro(ops, rng, "final_poll"), value=FIRST_TIME + 1 + 2 * rng.randrange(20))


def test_lookups_agree_with_their_definition() -> None:
    mutations = another_end, another_start, another_record_is_named, another_time_is_named
    agree(
        some_lookups,
        breaks_lookups,
        "list_offsets",
        (*OF_LOGS, *mutations, another_time_in_the_log),
    )
