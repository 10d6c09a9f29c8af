"""The workload group_consume: what it writes, and which broken coordinators its check finds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.drivers.driver import DriverError, Record
from quorumlog.chaos.history import read_history
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.workloads.consumer_group_consume import ConsumerGroupConsume
from quorumlog.chaos.workloads.group_consume import GroupConsume
from tests.support.chaos.carried_out import carried_out
from tests.support.chaos.group_histories import Group
from tests.support.chaos.group_in_memory import GroupInMemory
from tests.support.chaos.hand_made_histories import History, found, rows_of

SENDS = 150


async def judged(out: Path, group: GroupInMemory, workload: str = "group_consume") -> Verdict:
    """Run the workload until the logs have taken all sends, drain the group, and check it."""
    options = {
        "rate": 300.0,
        "producers": 2,
        "consumers": 3,
        "final_readers": 1,
        "polls_per_life": 10.0,
        "stalls": 0.3,
        "max_poll_interval_ms": 200,
    }
    return await carried_out(
        out,
        workload,
        group,
        SENDS,
        options,
        partitions=len(group.logs),
        final_s=2.0,
        reads_all=False,
    )


@pytest.mark.jumping_time
async def test_a_sound_coordinator_is_valid_while_members_come_and_go(tmp_path: Path) -> None:
    group = GroupInMemory()
    verdict = await judged(tmp_path, group)
    assert verdict.valid is True, verdict.as_json()
    assert verdict.results == []
    assert group.generation > 20
    rows = read_history(tmp_path).to_pylist()
    told = {micro["f"] for row in rows for micro in row["micro"]}
    assert told >= {"assigned", "revoked", "group_poll", "commit", "committed", "send"}
    refused = [row for row in rows if row["f"] == "commit" and row["type"] == "fail"]
    assert refused, "no member that had stalled tried to commit"
    assert all(row["error"].startswith("ILLEGAL_GENERATION") for row in refused)
    values = [m["value"] for row in rows if row["f"] == "group_poll" for m in row["micro"]]
    assert len(values) > SENDS, "nothing was delivered twice, so no member left work undone"


@pytest.mark.jumping_time
@pytest.mark.parametrize("kind", [GroupConsume, ConsumerGroupConsume])
async def test_members_join_by_their_protocol(kind: type[GroupConsume], tmp_path: Path) -> None:
    group = GroupInMemory()
    name = "group_consume" if kind is GroupConsume else "consumer_group_consume"
    assert (await judged(tmp_path, group, name)).valid is True
    assert group.protocols == {kind.protocol}


def loses_commits(group: GroupInMemory) -> None:
    def forget(offsets: Mapping[int, int]) -> None:
        group.keep(offsets)
        if group.commits % 10 == 0:
            group.committed = {index: offset // 2 for index, offset in group.committed.items()}

    group.take_commit = forget


def forgets_all_at_the_end(group: GroupInMemory) -> None:
    asked = []

    def answer(committed: dict[int, int]) -> dict[int, int]:
        asked.append(committed)
        return committed if len(group.logs[0]) + len(group.logs[1]) < SENDS else {}

    group.answer = answer


def takes_commits_of_zombies(group: GroupInMemory) -> None:
    group.refuses_zombies = False


def gives_a_partition_to_all(group: GroupInMemory) -> None:
    group.owners = lambda partition, count: partition % count if partition else -1
    rebalance = group.rebalance

    def wrong() -> None:
        rebalance()
        for member in group.members:
            member.next = [0, *(index for index in member.next if index)]

    group.rebalance = wrong  # type: ignore[method-assign]


def forgets_its_generation(group: GroupInMemory) -> None:
    group.next_generation = lambda generation: 1 if generation == 15 else generation + 1


def resumes_too_late(group: GroupInMemory) -> None:
    group.resume = lambda offset: offset + 3 if offset else 0


def resumes_too_early(group: GroupInMemory) -> None:
    group.resume = lambda offset: max(0, offset - 5)


def leaves_records_out(group: GroupInMemory) -> None:
    group.deliver = lambda records: [one for one in records if int(one.value) % 50 != 17]


def delivers_others(group: GroupInMemory) -> None:
    def deliver(records: list[Record]) -> list[Record]:
        return [one._replace(value=b"9999") if one.offset == 20 else one for one in records]

    group.deliver = deliver


def answers_what_was_never_committed(group: GroupInMemory) -> None:
    group.answer = lambda committed: {index: offset + 100 for index, offset in committed.items()}


@pytest.mark.parametrize(
    ("breaks", "anomaly"),
    [
        (loses_commits, "resumed-behind"),
        (forgets_all_at_the_end, "committed-lost"),
        (takes_commits_of_zombies, "zombie-commit"),
        (gives_a_partition_to_all, "split-ownership"),
        (forgets_its_generation, "generation-went-back"),
        (resumes_too_late, "resumed-ahead"),
        (resumes_too_late, "undelivered"),
        (resumes_too_early, "resumed-behind"),
        (leaves_records_out, "undelivered"),
        (leaves_records_out, "group-skip"),
        (delivers_others, "other-record"),
        (answers_what_was_never_committed, "committed-ahead"),
    ],
)
@pytest.mark.jumping_time
async def test_a_broken_coordinator_is_found(
    breaks: Callable[[GroupInMemory], None], anomaly: str, tmp_path: Path
) -> None:
    group = GroupInMemory()
    breaks(group)
    verdict = await judged(tmp_path, group)
    assert verdict.valid is False, verdict.as_json()
    found = {result.name: result for result in verdict.results}
    assert anomaly in found, list(found)
    assert found[anomaly].witnesses[0]["ops"]


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_static_member_takes_the_place_of_one_that_is_gone(is_gone: bool) -> None:
    """It is given the same partitions in the same generation (KIP-345), but never beside it."""
    history = History().sent(1)
    for process in (4, 14):
        history.op(process, "join")
        owned: list[Any] = [("x-0", -1, 6, "", "assigned"), ("x-0", 0, 1, "", "group_poll")]
        history.op(process, "group_poll", owned)
        if not is_gone:
            history.op(4, "group_poll")
    history.op(14, "commit", [("x-0", 1, 6)]).final((0, 1), end=1)
    table = table_of(rows_of(history.ops))
    verdict = check_history(table, "group_log")
    found = [result.name for result in verdict.results]
    assert found == ([] if is_gone else ["split-ownership"]), verdict.as_json()


def test_a_member_that_was_there_before_does_not_take_the_place_of_one_that_is_gone() -> None:
    """Only a static member is given partitions in the generation of another one."""
    history = History().sent(1)
    for process in (4, 14):
        history.op(process, "join")
    owned: list[Any] = [("x-0", -1, 6, "", "assigned"), ("x-0", 0, 1, "", "group_poll")]
    history.op(4, "group_poll", owned).op(14, "group_poll").op(14, "group_poll", owned)
    history.op(14, "commit", [("x-0", 1, 6)]).final((0, 1), end=1)
    verdict = check_history(table_of(rows_of(history.ops)), "group_log")
    assert verdict.valid is False, verdict.as_json()
    assert [result.name for result in verdict.results] == ["split-ownership"]


@pytest.mark.parametrize(
    ("generations", "anomalies"),
    [
        ((17, -1, 1), []),
        ((17, -1, 2, -1, 1), []),
        ((-1, 17, 1), []),
        ((17, 1), ["generation-went-back", "zombie-commit"]),
        ((17, 1, -1), ["generation-went-back", "zombie-commit"]),
    ],
)
def test_generations_begin_anew_after_the_consumer_protocol(
    generations: Sequence[int], anomalies: Sequence[str]
) -> None:
    """A classic group that replaces an empty consumer group has a first generation (KIP-848)."""
    group = Group().sent(1)
    for process, generation in enumerate(generations, start=4):
        group.member(process, generation).deliver((0, 1)).commit(0)
    group.commit(1)
    verdict = check_history(group.final((0, 1), end=1).table(), "group_log")
    assert found(verdict) == anomalies, verdict.as_json()


@pytest.mark.parametrize("is_consumer", [True, False])
def test_a_member_that_was_assigned_nothing_may_have_changed_the_protocol(
    is_consumer: bool,
) -> None:
    """It leaves before its first assignment, and its empty group is replaced."""
    group = Group().sent(1).member(4, 17).deliver((0, 1)).commit(0)
    group.member(5, -1 if is_consumer else 18).member(6, 1).deliver((0, 1)).commit(1)
    verdict = check_history(group.final((0, 1), end=1).table(), "group_log")
    anomalies = ["generation-went-back", "zombie-commit"]
    assert found(verdict) == ([] if is_consumer else anomalies), verdict.as_json()


@pytest.mark.jumping_time
async def test_a_coordinator_that_answers_an_old_offset_is_legal(tmp_path: Path) -> None:
    group, answers = GroupInMemory(), []

    def answer(committed: dict[int, int]) -> dict[int, int]:
        answers.append(committed)
        return answers[3] if len(answers) in {8, 9} else committed

    group.answer = answer
    verdict = await judged(tmp_path, group)
    assert verdict.valid is True, verdict.as_json()
    assert [result.name for result in verdict.results] == ["committed-stale"]


@pytest.mark.jumping_time
async def test_a_group_that_never_commits_the_end_is_unknown(tmp_path: Path) -> None:
    group = GroupInMemory()

    def refuse(offsets: Mapping[int, int]) -> None:
        if max(offsets.values()) > 50:
            raise DriverError("COORDINATOR_NOT_AVAILABLE")
        group.keep(offsets)

    group.take_commit = refuse
    verdict = await judged(tmp_path, group)
    assert verdict.valid == "unknown"
    assert "has not committed past" in verdict.unknown_because[0]
