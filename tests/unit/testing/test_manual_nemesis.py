"""The nemesis of a test: whom its verbs hit, in which order, and what is mended at the end."""

import asyncio
from collections.abc import Iterator
from types import MappingProxyType

import pytest

from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.control.acts import NoSuchLink, NoSuchNode
from quorumlog.chaos.control.manual_nemesis import ManualNemesis
from tests.support.testing.fake_back_end import FakeBackEnd

Rows = list[tuple[str, str, str]]


@pytest.fixture
def back_end() -> FakeBackEnd:
    return FakeBackEnd(
        {
            ("partition-leader", "orders"): [2],
            ("isr-follower", "orders"): [1, 3],
            ("partition-leader", "bills"): [3],
        }
    )


def nemesis_of(back_end: FakeBackEnd, rows: Rows, *, outlives: bool = True) -> ManualNemesis:
    return ManualNemesis(
        back_end,
        topics=lambda: ["bills", "orders"],
        topic="orders",
        seed=1,
        record=lambda f, node, details: rows.append((f, node, details)),
        outlives=outlives,
    )


@pytest.fixture
def rows() -> Rows:
    return []


@pytest.fixture
def verbs(back_end: FakeBackEnd, rows: Rows) -> Iterator[ManualNemesis]:
    with nemesis_of(back_end, rows) as nemesis:
        yield nemesis


def test_a_role_is_that_of_the_topic_of_the_test(verbs: ManualNemesis) -> None:
    assert verbs.kill("partition-leader").node_ids == (2,)
    assert verbs.pause("partition-leader", topic="bills").node_ids == (3,)


def test_without_a_topic_any_topic_counts(back_end: FakeBackEnd) -> None:
    nemesis = ManualNemesis(
        back_end, topics=lambda: ["bills", "orders"], topic=None, seed=1, record=lambda *_: None
    )
    with nemesis:
        assert nemesis.holders("partition-leader") == (2, 3)


def test_what_is_broken_is_mended_at_the_end(back_end: FakeBackEnd, rows: Rows) -> None:
    with nemesis_of(back_end, rows) as nemesis:
        nemesis.kill(1)
        nemesis.pause([2, 3])
    assert back_end.done == [("kill", (1,)), ("pause", (2, 3)), ("resume", (2, 3)), ("start", (1,))]
    assert rows == [
        ("kill", "1", "#1 kill: named"),
        ("pause", "2,3", "#2 pause: named"),
        ("resume", "2,3", "#2 pause"),
        ("start", "1", "#1 kill"),
        ("heal", "", "every node is back"),
    ]


def test_the_dead_stay_dead_if_the_cluster_ends_too(back_end: FakeBackEnd, rows: Rows) -> None:
    with nemesis_of(back_end, rows, outlives=False) as nemesis:
        nemesis.kill(1)
        nemesis.pause(2)
    assert back_end.done == [("kill", (1,)), ("pause", (2,)), ("resume", (2,))]


def test_a_node_that_stands_still_is_not_chosen_again(verbs: ManualNemesis) -> None:
    first = verbs.pause("isr-follower").node_ids
    second = verbs.kill("isr-follower").node_ids
    assert sorted(first + second) == [1, 3]


def test_resume_without_a_target_resumes_all(verbs: ManualNemesis) -> None:
    verbs.pause(1)
    verbs.pause(3)
    assert verbs.resume().node_ids == (1, 3)
    assert verbs.resume().node_ids == ()


def test_a_verb_that_is_refused_leaves_no_trace(
    verbs: ManualNemesis, back_end: FakeBackEnd, rows: Rows
) -> None:
    verbs.pause([1, 1])
    verbs.kill(1)
    for verb in (verbs.kill, verbs.pause):
        with pytest.raises(NodeUnavailable, match="node 1 does not run"):
            verb([1, 2])  # half a kill is none
    assert back_end.done == [("pause", (1,)), ("kill", (1,))]
    assert [f for f, *_ in rows] == ["pause", "kill", "resume"]
    assert verbs.resume().node_ids == ()
    verbs.pause(3)
    back_end.dead.add(3)  # by itself
    assert verbs.resume().node_ids == ()
    assert verbs.start([1, 3]).node_ids == (1, 3)


def test_a_topic_that_there_is_not_is_a_mistake(verbs: ManualNemesis) -> None:
    with pytest.raises(ValueError, match="there is no topic ordrs; did you mean orders"):
        verbs.kill("partition-leader", topic="ordrs")


def test_groups_are_drawn_and_all_that_run_hold_any(
    verbs: ManualNemesis, back_end: FakeBackEnd
) -> None:
    back_end.dead.add(2)
    assert verbs.holders("any") == verbs.holders("all") == (1, 3)
    with pytest.raises(ValueError, match="no node holds it"):
        verbs.holders("minority")


def test_a_raising_block_takes_its_fault_back(verbs: ManualNemesis, back_end: FakeBackEnd) -> None:
    def fail_meanwhile() -> None:
        with verbs.paused("partition-leader") as node_ids:
            raise RuntimeError(f"{node_ids} stand still")

    with pytest.raises(RuntimeError, match=r"\(2,\) stand still"):
        fail_meanwhile()
    with verbs.killed("partition-leader"):
        pass
    assert [f for f, _ in back_end.done] == ["pause", "resume", "kill", "start"]


def test_a_group_is_less_or_more_than_half(verbs: ManualNemesis) -> None:
    with verbs.paused("minority") as node_ids:
        assert len(node_ids) == 1
    with verbs.paused("majority") as node_ids:
        assert len(node_ids) == 2
    assert verbs.kill("all").node_ids == (1, 2, 3)


def test_a_rack_is_hit_as_a_whole(verbs: ManualNemesis, back_end: FakeBackEnd) -> None:
    with verbs.isolated("rack:a") as node_ids:
        assert node_ids == (1, 3)
    with verbs.paused("rack") as node_ids:
        assert node_ids in {(1, 3), (2,)}
    with pytest.raises(ValueError, match="target rack:c: the racks are a, b"):
        verbs.kill("rack:c")
    with pytest.raises(ValueError, match="no node holds it"):
        verbs.holders("rack")
    assert verbs.kill("rack:b").node_ids == (2,)
    with pytest.raises(NoSuchNode, match="no node of rack:b runs: 1,3 running"):
        verbs.pause("rack:b")
    back_end.racks = MappingProxyType({})
    with pytest.raises(ValueError, match="the cluster has no racks; --racks a,b,c"):
        verbs.kill("rack")


def test_mistakes_are_told_with_what_there_is(verbs: ManualNemesis) -> None:
    with pytest.raises(ValueError, match="did you mean partition-leader"):
        verbs.kill("partition-leder")
    with pytest.raises(NoSuchNode, match="there is no node 7; this cluster has 1,2,3"):
        verbs.kill(7)
    with pytest.raises(NoSuchNode, match="there is no node True; this cluster has 1,2,3"):
        verbs.kill(True)
    verbs.kill("all")
    with pytest.raises(NoSuchNode, match="no node that runs is any: none running"):
        verbs.kill()


async def test_verbs_in_coroutines_are_awaited(verbs: ManualNemesis, back_end: FakeBackEnd) -> None:
    assert (await verbs.kill("partition-leader")).node_ids == (2,)
    async with verbs.paused(1) as node_ids:
        assert node_ids == (1,)
    assert back_end.done[-1] == ("resume", (1,))


async def test_verbs_that_are_not_awaited_are_done_in_their_order(
    verbs: ManualNemesis, back_end: FakeBackEnd
) -> None:
    verbs.kill(1)
    verbs.start(1)
    await verbs.pause(2)
    assert back_end.done == [("kill", (1,)), ("start", (1,)), ("pause", (2,))]


def test_the_error_of_a_verb_that_was_not_awaited_is_raised_at_the_end(
    back_end: FakeBackEnd, rows: Rows
) -> None:
    async def forget(nemesis: ManualNemesis) -> None:
        nemesis.kill(1)

    def run() -> None:
        with nemesis_of(back_end, rows) as nemesis:
            asyncio.run(forget(nemesis))

    back_end.refuses = {1}
    with pytest.raises(NodeUnavailable, match="kill: no"):
        run()


def test_a_nemesis_is_not_used_after_its_test(back_end: FakeBackEnd, rows: Rows) -> None:
    with nemesis_of(back_end, rows) as nemesis:
        pass
    with pytest.raises(RuntimeError, match="is over"):
        nemesis.kill(1)


def links_of(back_end: FakeBackEnd) -> list[str]:
    return sorted(str(link) for rule in back_end.rules.values() for link in rule.links)


def test_isolation_alone_cuts_the_clients_off(verbs: ManualNemesis, back_end: FakeBackEnd) -> None:
    with verbs.partitioned("partition-leader") as node_ids:
        assert node_ids == (2,)
        assert links_of(back_end) == ["1->2", "2->1", "2->3", "3->2"]
    assert links_of(back_end) == []
    with verbs.isolated("partition-leader"):
        assert {"2->clients", "clients->2"} < set(links_of(back_end))
    with verbs.inflicted("isolate-role", "client") as node_ids:
        assert node_ids == ()
        assert len(links_of(back_end)) == 6


def test_a_fault_on_missing_links_is_an_error_without_row(
    back_end: FakeBackEnd, rows: Rows
) -> None:
    back_end.silent = {"2->clients", "clients->2", "1->2", "2->1", "2->3", "3->2"}
    with nemesis_of(back_end, rows) as nemesis:
        with pytest.raises(NoSuchLink, match="isolate_role on 2: this cluster has no such link"):
            nemesis.isolate(2)
        with pytest.raises(NoSuchLink), nemesis.partitioned(2):
            pass
        assert (back_end.rules, rows) == ({}, [])
        nemesis.partition(1)
        assert links_of(back_end) == ["1->2", "1->3", "2->1", "3->1"]
        assert rows[0][2].startswith("#1 ")


def test_a_block_ends_its_own_fault_on_links_alone(
    verbs: ManualNemesis, back_end: FakeBackEnd, rows: Rows
) -> None:
    verbs.delay(1, min_ms=5, spread_ms=0)
    with verbs.inflicted("slow_link", 2, bytes_per_s=1000):
        assert len(back_end.rules) == 2
    assert len(back_end.rules) == 1
    verbs.mend()
    assert back_end.rules == {}
    assert [(f, node) for f, node, _ in rows] == [
        ("delay", "1"),
        ("slow_link", "2"),
        ("stop-slow_link", "2"),
        ("stop-delay", "1"),
    ]
    assert rows[0][2].startswith("#1 delay: named; 1->")
    assert rows[3][2] == "#1 delay"


def test_a_fault_of_nodes_is_inflicted_and_mended(
    back_end: FakeBackEnd, verbs: ManualNemesis, rows: Rows
) -> None:
    back_end.operations |= {"slow_fsync", "mend_fsync"}
    verbs.inflict("slow-fsync", 2, us=300_000)
    assert back_end.done[-1] == ("slow_fsync", (2,))
    verbs.mend()
    assert back_end.done[-1] == ("mend_fsync", (2,))
    assert [(f, node) for f, node, _ in rows] == [("slow_fsync", "2"), ("stop-slow_fsync", "2")]


def test_a_fault_is_refused_whose_operation_the_cluster_lacks(
    back_end: FakeBackEnd, verbs: ManualNemesis, rows: Rows
) -> None:
    before = list(back_end.done)
    with pytest.raises(ValueError, match="power_loss cannot be inflicted here: "):
        verbs.inflict("power_loss", 1)
    assert (back_end.done, rows) == (before, [])


def test_a_node_that_a_fault_has_paused_is_no_target(
    back_end: FakeBackEnd, verbs: ManualNemesis
) -> None:
    verbs.inflict("pause", [1, 2])
    verbs.kill("any")
    assert back_end.done[-1] == ("kill", (3,))
    verbs.heal()
    assert ("resume", (1, 2)) in back_end.done


def test_a_node_that_two_faults_hold_leaves_its_state_with_the_last(
    back_end: FakeBackEnd, verbs: ManualNemesis, rows: Rows
) -> None:
    with verbs.inflicted("pause", [1, 2]):
        with verbs.paused([1, 3]):
            pass
        assert back_end.done[-1:] == [("resume", (3,))]
        with verbs.inflicted("pause", 2):
            pass
        assert back_end.done[-1:] == [("pause", (2,))]
    assert back_end.done[-1:] == [("resume", (1, 2))]
    with verbs.paused(1):
        with verbs.paused(1):
            pass
        assert back_end.done[-1:] == [("pause", (1,))]
    assert back_end.done[-1:] == [("resume", (1,))]
    assert [details for f, _, details in rows if f == "resume"] == [
        "#2 pause",
        "#5 pause",
        "#4 pause",
    ]
    verbs.pause(1)
    with verbs.paused(1):
        verbs.resume(1)  # a verb undoes all that was done to the node
    assert back_end.done[-1:] == [("resume", (1,))]


def test_a_block_within_another_gives_back_the_amount(
    back_end: FakeBackEnd, verbs: ManualNemesis
) -> None:
    back_end.operations |= {"slow_fsync", "mend_fsync"}
    with verbs.inflicted("slow-fsync", [1, 2], us=300_000):
        with verbs.inflicted("slow-fsync", [2, 3], us=10):
            assert back_end.amounts == {1: 300_000, 2: 10, 3: 10}
        assert back_end.amounts == {1: 300_000, 2: 300_000, 3: 0}
    assert back_end.amounts == {1: 0, 2: 0, 3: 0}


def test_the_faults_of_a_dead_node_end_and_its_next_process_is_a_target(
    back_end: FakeBackEnd, verbs: ManualNemesis
) -> None:
    verbs.inflict("pause", 1)
    verbs.pause([1, 2])
    back_end.dead.update({1, 2})  # by themselves
    verbs.mend()
    verbs.heal()
    assert [one for one in back_end.done if one[0] != "pause"] == [("start", (1, 2))]
    back_end.dead.add(3)
    assert set(verbs.kill(2).node_ids) | set(verbs.kill("any").node_ids) == {1, 2}


def test_a_failed_end_of_a_fault_leaves_no_other_in_force(
    back_end: FakeBackEnd, rows: Rows
) -> None:
    back_end.operations |= {"slow_fsync", "mend_fsync"}

    def use(nemesis: ManualNemesis) -> None:
        with nemesis:
            nemesis.inflict("slow-fsync", 1, us=10)
            nemesis.isolate(3)
            nemesis.pause(2)
            back_end.refuses = {1}

    nemesis = nemesis_of(back_end, rows)
    with pytest.raises(NodeUnavailable, match="mend_fsync: no"):
        use(nemesis)
    assert back_end.rules == {}
    assert back_end.done[-1] == ("resume", (2,))
    back_end.refuses = set()
    with nemesis:  # it heals again
        pass
    assert back_end.done[-1] == ("mend_fsync", (1,))
    assert rows[-1] == ("heal", "", "every node is back")


def test_requests_to_the_cluster_are_undone_when_the_dead_nodes_are_back(
    back_end: FakeBackEnd, rows: Rows
) -> None:
    back_end.operations |= {"limit", "unlimit"}
    for outlives in (True, False):
        with nemesis_of(back_end, rows, outlives=outlives) as nemesis:
            nemesis.inflict("quota", "all")
            nemesis.kill([1, 2])
        undone = [f for f, _ in back_end.done[-2:]]
        assert undone == (["start", "unlimit"] if outlives else ["limit", "kill"])


def test_links_are_healed_at_the_end(back_end: FakeBackEnd, rows: Rows) -> None:
    with nemesis_of(back_end, rows, outlives=False) as nemesis:
        nemesis.isolate(1)
    assert back_end.rules == {}
    assert rows[-1] == ("heal", "", "every node is back")


def test_faults_have_names_and_parameters(verbs: ManualNemesis) -> None:
    with pytest.raises(ValueError, match="no fault is called 'slow_lnk' - did you mean"):
        verbs.inflict("slow_lnk", 1)
    with pytest.raises(ValueError, match="no parameter of slow_link is called 'bytes'"):
        verbs.inflict("slow_link", 1, bytes=1)
    with pytest.raises(ValueError, match=r"the target of kill is .* or node ids: not client"):
        verbs.inflict("kill", "client")
    with pytest.raises(ValueError, match="use `quorumlog topics grow`"):
        verbs.inflict("grow", "all")
    with pytest.raises(ValueError, match="reorder: a cluster of processes cannot do it"):
        verbs.inflict("reorder", "all")
    with pytest.raises(ValueError, match="bytes_per_s = 1: it must be from 100"):
        verbs.inflict("slow_link", 1, bytes_per_s=1)
