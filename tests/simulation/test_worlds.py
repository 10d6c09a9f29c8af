"""The world of logs: seeds hold, mutants are found; all worlds: runs replay and shrink."""

import pytest

from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.simulation import WORLDS, replay, simulate
from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.kernel.timeline import EVENTS_AT_ONE_INSTANT_MAX, Timeline
from tests.support.sizes import tries

# Mutants that the swarm finds often: a seed of each. docs/recall.md has all.
FOUND = [
    ("removes_what_is_not_committed", 3, "committed-kept"),
    ("ages_by_the_oldest_record", 0, "retained"),
    ("forgets_where_it_starts", 0, "start-kept"),
    ("drops_the_newest", 1, "newest-kept"),
    ("cleans_what_is_not_committed", 1, "newest-kept"),
    ("forgets_keys_when_full", 1, "cleaned"),
    ("doubts_no_fsync", 7, "durability"),
    ("sets_the_last_records_aside", 7, "set-aside"),
    ("refuses_only_once", 7, "durability"),
    ("opens_logs_without_their_start", 32, "start-kept"),
    ("opens_logs_without_their_end", 7, "durability"),
]


def test_seeds_hold() -> None:
    for seed in range(tries(3)):
        result = simulate(seed, world="logs", duration_ms=5_000)
        assert result.valid, result
        assert result.committed > 0


@pytest.mark.parametrize("seed", [7, 9, 23, 25])
def test_logs_survive_damage_that_a_person_repairs(seed: int) -> None:
    result = simulate(seed, world="logs", duration_ms=5_000)
    assert result.schedule.options["is_damaged"]
    assert result.valid, result


def test_each_kind_of_fault_alone() -> None:
    for fault in WORLDS["logs"].faults:
        assert simulate(7, world="logs", duration_ms=2_500, faults=[fault.name]).valid


def test_a_leader_that_was_no_voter_in_an_old_log_is_sent_requests_again() -> None:
    result = simulate(136, world="voters", duration_ms=20_000)
    assert result.valid, result


@pytest.mark.planted
@pytest.mark.parametrize(("mutant", "seed", "rule"), FOUND)
def test_a_mutant_is_found(mutant: str, seed: int, rule: str) -> None:
    violation = simulate(seed, world="logs", mutant=mutant, duration_ms=6_000).violation
    assert violation is not None
    assert violation.startswith(f"{rule}: ")


@pytest.mark.parametrize("world", WORLDS)
def test_equal_arguments_give_an_equal_result(world: str) -> None:
    first, second, other = (simulate(seed, world=world, duration_ms=2_500) for seed in (4, 4, 5))
    assert first == second
    assert first.digest != other.digest
    read_again = Schedule.from_json(first.schedule.to_json())
    assert replay(read_again) == first


def test_a_leader_that_is_busy_for_ever_is_a_finding_with_a_trace() -> None:
    result = simulate(0, duration_ms=10_000, mutant="never_resigns")
    assert result.violation is not None
    assert result.violation.startswith("progress: more than ")
    assert "Ticked" in result.trace[-1]


def test_events_at_one_instant_are_limited_and_those_in_time_are_not() -> None:
    timeline = Timeline()
    left = 3 * EVENTS_AT_ONE_INSTANT_MAX

    def happen(after_us: int) -> None:
        nonlocal left
        left -= 1
        if left:
            timeline.push(after_us, happen, after_us)

    happen(1)
    timeline.run()
    assert timeline.events == 3 * EVENTS_AT_ONE_INSTANT_MAX - 1
    left = 3 * EVENTS_AT_ONE_INSTANT_MAX
    happen(0)
    with pytest.raises(Violation, match="progress: "):
        timeline.run()
