"""Worlds with brokers, groups, logs: seeds hold, mutants are found, runs replay and shrink."""

import pytest

from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.simulation import WORLDS, replay, shrink, simulate
from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.kernel.timeline import EVENTS_AT_ONE_INSTANT_MAX, Timeline
from tests.support.sizes import tries

# Mutants that the swarm finds often: a seed of each. docs/architecture/simulation.md counts all.
FOUND = [
    ("partition", "commits_alone", 0, "isr-complete"),
    ("partition", "lets_laggards_join", 1, "isr-complete"),
    ("partition", "ignores_divergence", 0, "commit-agreed"),
    ("partition", "truncates_to_its_high_watermark", 2, "isr-complete"),
    ("partition", "shrinks_before_it_is_granted", 0, "isr-complete"),
    ("partition", "never_looks_at_the_clock", 11, "liveness"),
    ("partition", "takes_up_logs_of_deleted_topics", 10, "recovery"),
    ("partition", "commits_before_its_flush", 8, "commit-durable"),
    ("partition", "followers_tell_unflushed_offsets", 13, "commit-durable"),
    ("partition", "flushes_do_not_wait", 1, "commit-durable"),
    ("partition", "counts_flushes_from_before_cuts", 18, "liveness"),
    ("composed", "keeps_the_elr_while_it_commits", 1, "isr-complete"),
    ("composed", "resumes_without_its_records", 48, "isr-complete"),
    ("composed", "elects_any_that_lives", 2, "isr-complete"),
    ("composed", "ends_before_all_are_in_sync", 0, "reassign-ends"),
    ("composed", "leaves_what_was_added", 0, "reassign-ends"),
    ("composed", "drops_the_old_replicas_at_once", 28, "reassign-keeps"),
    ("composed", "drops_the_leader_without_an_election", 10, "liveness"),
    ("composed", "fences_before_the_last_slice", 2, "controller"),
    ("composed", "elects_without_leave", 3, "unclean"),
    ("composed", "passes_over_the_eligible", 2, "isr-complete"),
    ("composed", "keeps_the_isr_of_the_lost_history", 95, "isr-complete"),
    ("composed", "keeps_what_was_committed", 10, "liveness"),
    ("groups", "answers_commits_early", 1, "acked-committed"),
    ("groups", "shows_uncommitted_offsets", 16, "fetched-committed"),
    ("groups", "takes_any_generation", 9, "old-generation"),
    ("groups", "takes_former_members", 4, "old-generation"),
    ("groups", "forgets_generations", 5, "one-assignment"),
    ("groups", "assigns_before_it_is_stored", 0, "told-committed"),
    ("groups", "loads_the_oldest_offsets", 18, "offset-lost"),
    ("groups", "serves_before_all_is_committed", 139, "one-assignment"),
    ("groups", "serves_after_it_resigned", 36, "one-assignment"),
    ("groups", "shows_unstable_offsets", 96, "offset-lost"),
    ("groups", "verifies_nothing", 0, "liveness"),
    ("groups", "forgets_open_transactions", 18, "offset-lost"),
    ("groups", "loads_pending_as_committed", 42, "transaction-shown"),
    ("groups", "counts_what_is_aborted", 0, "transaction-shown"),
    ("groups", "acknowledges_markers_early", 0, "liveness"),
    ("consumer_groups", "answers_before_the_commit", 0, "told-committed"),
    ("consumer_groups", "gives_no_session", 0, "removed-early"),
    ("logs", "removes_what_is_not_committed", 3, "committed-kept"),
    ("logs", "ages_by_the_oldest_record", 0, "retained"),
    ("logs", "forgets_where_it_starts", 0, "start-kept"),
    ("logs", "drops_the_newest", 1, "newest-kept"),
    ("logs", "cleans_what_is_not_committed", 1, "newest-kept"),
    ("logs", "forgets_keys_when_full", 1, "cleaned"),
    ("logs", "doubts_no_fsync", 7, "durability"),
    ("logs", "sets_the_last_records_aside", 7, "set-aside"),
    ("logs", "refuses_only_once", 7, "durability"),
    ("logs", "opens_logs_without_their_start", 32, "start-kept"),
    ("logs", "opens_logs_without_their_end", 7, "durability"),
]
LONGER = {
    "takes_up_logs_of_deleted_topics",
    "resumes_without_its_records",
    "elects_any_that_lives",
    "never_looks_at_the_clock",
    "takes_any_generation",
    "shows_unstable_offsets",
}  # they need more than 6 s
MOVES = ["reassign", "kill", "pause"]
MOVING = {
    "ends_before_all_are_in_sync",
    "leaves_what_was_added",
    "drops_the_old_replicas_at_once",
    "drops_the_leader_without_an_election",
}


@pytest.mark.parametrize(
    ("world", "seeds"),
    [("partition", 8), ("composed", 8), ("groups", 8), ("consumer_groups", 8), ("logs", 3)],
)
def test_seeds_hold(world: str, seeds: int) -> None:
    for seed in range(tries(seeds)):
        result = simulate(seed, world=world, duration_ms=5_000)
        assert result.valid, result
        assert result.committed > 0


@pytest.mark.parametrize("seed", [7, 9, 23, 25])
def test_logs_survive_damage_that_a_person_repairs(seed: int) -> None:
    result = simulate(seed, world="logs", duration_ms=5_000)
    assert result.schedule.options["is_damaged"]
    assert result.valid, result


@pytest.mark.parametrize("world", ["composed", "groups", "consumer_groups"])
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_seeds_hold_with_other_numbers_of_brokers(world: str, nodes: int) -> None:
    for seed in range(2):
        assert simulate(seed, world=world, nodes=nodes, duration_ms=3_000).valid


@pytest.mark.parametrize("world", ["partition", "groups", "consumer_groups", "logs"])
def test_each_kind_of_fault_alone(world: str) -> None:
    for fault in WORLDS[world].faults:
        assert simulate(7, world=world, duration_ms=2_500, faults=[fault.name]).valid


def test_a_kill_does_not_leave_only_brokers_that_lost_their_power() -> None:
    """The third of three members is killed after two lost their power: by right, records go."""
    assert simulate(1037, world="composed", nodes=5, duration_ms=6_000).valid


@pytest.mark.parametrize(
    ("world", "seed"),
    [
        ("groups", 56),  # a timer that was set while the clock ran too fast came too early
        ("composed", 95),  # a replaced leader acknowledged to a producer that had begun anew
        ("composed", 100),  # a high watermark outlived the records of an unclean election
        ("composed", 467),
        ("composed", 794),  # a person took the records of a deleted topic for the new one's
        ("composed", 1184),
        ("voters", 136),  # a leader that was no voter in an old log was never sent another request
        ("partition", 2559),  # the last records of a partition were set aside after a loss of power
    ],
)
def test_a_seed_that_has_failed_holds(world: str, seed: int) -> None:
    result = simulate(seed, world=world, duration_ms=20_000)
    assert result.valid, result


@pytest.mark.parametrize(
    ("seed", "duration_ms"),
    [
        (516, 15_000),  # a topic had grown while a static leader was away; the leader did not look
        (69, 20_000),  # a static member restarted before it had revoked the partitions of others
        (993, 15_000),  # a leaving member sent to a former coordinator for ever
        (1081, 60_000),  # a classic leader had no partition for the last member
        (
            1827,
            60_000,
        ),  # a member came back to a group that had been deleted: its epochs began again
    ],
)
def test_a_run_of_a_consumer_group_that_has_failed_holds(seed: int, duration_ms: int) -> None:
    result = simulate(seed, world="consumer_groups", duration_ms=duration_ms)
    assert result.valid, result


@pytest.mark.planted
def test_a_run_that_does_not_settle_says_what_it_waits_for() -> None:
    seed, mutant = 7, "looks_at_no_topics"
    result = simulate(seed, world="consumer_groups", duration_ms=10_000, mutant=mutant)
    assert str(result.violation).startswith("liveness: waits for an owner of each partition")
    seed, mutant = 0, "verifies_nothing"
    result = simulate(seed, world="groups", duration_ms=6_000, mutant=mutant)
    assert str(result.violation).startswith("liveness: waits for another acknowledgement to client")


@pytest.mark.planted
@pytest.mark.parametrize(("world", "mutant", "seed", "rule"), FOUND)
def test_a_mutant_is_found(world: str, mutant: str, seed: int, rule: str) -> None:
    duration_ms = 10_000 if mutant in LONGER else 6_000
    faults = MOVES if mutant in MOVING else None
    violation = simulate(
        seed, world=world, mutant=mutant, duration_ms=duration_ms, faults=faults
    ).violation
    assert violation is not None
    assert violation.startswith(f"{rule}: ")


@pytest.mark.planted
def test_what_a_classic_member_gives_up_is_its_own_when_its_group_is_upgraded() -> None:
    """In this seed a member of KIP-848 joins while a classic member has more than its new share."""
    seed, world, duration_ms = 1069, "consumer_groups", 20_000
    assert simulate(seed, world=world, duration_ms=duration_ms).valid
    broken = simulate(seed, world=world, duration_ms=duration_ms, mutant="frees_the_unrevoked")
    assert str(broken.violation).startswith("one-owner: ")


@pytest.mark.parametrize("world", WORLDS)
def test_equal_arguments_give_an_equal_result(world: str) -> None:
    first, second, other = (simulate(seed, world=world, duration_ms=2_500) for seed in (4, 4, 5))
    assert first == second
    assert first.digest != other.digest
    read_again = Schedule.from_json(first.schedule.to_json())
    assert replay(read_again) == first


@pytest.mark.planted
def test_a_failing_run_shows_its_end_and_shrinks() -> None:
    mutant = "keeps_the_elr_while_it_commits"
    failing = simulate(1, world="composed", mutant=mutant, duration_ms=6_000)
    assert any("records-" in line and "Leader" in line for line in failing.trace)
    smallest = Schedule.from_json(shrink(failing).to_json())
    assert len(smallest.actions) < len(failing.schedule.actions)
    again = replay(smallest, mutant=mutant)
    assert again.violation is not None
    assert again.violation.startswith("isr-complete: ")
    assert replay(smallest).valid


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
