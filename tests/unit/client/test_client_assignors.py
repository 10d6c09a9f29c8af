"""Assignors of the user's own that are right, wrong or stuck; patterns of classic groups."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from quorumlog.client import AssignorError, Consumer, Subscription, TopicPartition
from quorumlog.client.assignor import Assignor, Members, Partitions, RebalanceProtocol
from quorumlog.client.settings import ConsumerOptions, ConsumerSettings
from quorumlog.client.sync import SyncConsumer
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.client.fake_cluster import T
from tests.support.client.fake_group import HEARTBEAT, SYNC, GroupCluster
from tests.support.client.opened import in_group
from tests.support.waiting import until

OPTIONS: ConsumerOptions = {
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": 10,
    "fetch_max_wait_ms": 10,
    "metadata_max_age_ms": 20,
    "auto_commit_interval_ms": 60_000,
}
U = TopicPartition("t", 1)
V = TopicPartition("v", 0)
LAZY: Any = "lazy"


@dataclass
class Scripted:
    """An assignor that does as the test says; `good` is a valid assignment to one member."""

    act: Callable[[Members, Partitions], Any]
    name: str = "scripted"
    protocol: RebalanceProtocol = "cooperative"

    def assign(
        self, members: Members, partitions: Partitions
    ) -> Mapping[str, Iterable[TopicPartition]]:
        assignment: Mapping[str, Iterable[TopicPartition]] = self.act(members, partitions)
        return assignment


def good(members: Members, partitions: Partitions) -> dict[str, list[TopicPartition]]:
    return {sorted(members)[0]: [*partitions]}


def raises(_members: Members, _partitions: Partitions) -> None:
    raise SystemExit(3)


WRONG: list[tuple[Callable[[Members, Partitions], Any], str]] = [
    (lambda m, p: {}, "assigned to no member: t-0, t-1"),
    (lambda m, p: {"m": [T]}, "assigned to no member: t-1"),
    (lambda m, p: {"m": [T, U, U]}, "assigned t-1 twice: to m and m"),
    (lambda m, p: {**good(m, p), "stranger": []}, "assigned partitions to 'stranger', which is no"),
    (lambda m, p: {"m": [*p, V]}, "assigned v-0 to m: no partition of its topics"),
    (lambda m, p: {"m": [*p, ("t", 1)]}, r"assigned \('t', 1\) to m: no TopicPartition"),
    (lambda m, p: {"m": 7}, "assigned 7 to m: no list of partitions"),
    (lambda m, p: [*p], "returned list, not a mapping"),
    (
        lambda m, p: {"m": [T, TopicPartition("t", cast("int", 1.0))]},
        r"assigned Top.*1.0\) to m: no Top",
    ),
    (lambda m, p: {"m": [TopicPartition(cast("str", []), 0)]}, "raised TypeError"),
    (lambda m, p: {"m": map(cast("Any", raises), m, p)}, r"raised SystemExit\(3\)"),
    (raises, r"raised SystemExit\(3\)"),
]


async def poll_until(consumer: Consumer, is_over: Callable[[], bool]) -> None:
    while not is_over():
        await consumer.poll(10)


@pytest.mark.parametrize(("wrong", "text"), WRONG)
async def test_a_wrong_assignment_is_refused_and_no_member_loses_partitions(
    wrong: Callable[[Members, Partitions], Any], text: str
) -> None:
    scripted = Scripted(good)
    async with in_group(5, OPTIONS, assignor=scripted) as (cluster, consumer):
        cluster.topics["t"] = 2
        consumer.subscribe(["t"])
        await poll_until(consumer, lambda: consumer.assignment() == {T, U})
        while consumer._positions.of(T).offset != 5:
            await consumer.poll(10)
        scripted.act = wrong
        synced = cluster.asked.count((1, SYNC))
        cluster.beat = ErrorCode.REBALANCE_IN_PROGRESS
        for _ in range(2):  # it is tried again, and raised again
            with pytest.raises(AssignorError, match=f"the assignor 'scripted' {text}") as caught:
                await poll_until(consumer, lambda: False)
            assert (caught.value.definite, caught.value.fatal) == (True, False)
            assert isinstance(caught.value.__cause__, SystemExit) == ("SystemExit" in text)
            assert consumer.assignment() == {T, U}
        assert cluster.asked.count((1, SYNC)) == synced  # no part of it was sent
        scripted.act = good
        await poll_until(consumer, lambda: cluster.asked.count((1, SYNC)) > synced)
        await poll_until(consumer, lambda: consumer.group_metadata().generation_id >= 0)
        await consumer.commit()
        assert await consumer.position(T) == 5


async def test_a_blocked_assignor_ends_neither_heartbeats_nor_poll_nor_stop() -> None:
    entered, may_return = threading.Event(), threading.Event()

    def block(members: Members, partitions: Partitions) -> dict[str, list[TopicPartition]]:
        entered.set()
        may_return.wait()
        return good(members, partitions)

    async with in_group(1, OPTIONS, assignor=block, max_poll_interval_ms=300) as (
        cluster,
        consumer,
    ):
        consumer.subscribe(["t"])
        await poll_until(consumer, entered.is_set)
        before = cluster.asked.count((1, HEARTBEAT))
        await until(lambda: cluster.asked.count((1, HEARTBEAT)) > before)
        with pytest.raises(AssignorError, match="'block' did not return within max_poll_interval"):
            await poll_until(consumer, lambda: False)
        entered.clear()
        await poll_until(consumer, entered.is_set)
    assert not may_return.is_set()  # the consumer has stopped all the same
    may_return.set()


async def test_an_assignor_gets_subscriptions_and_partitions_with_racks() -> None:
    seen: list[tuple[Members, Partitions]] = []

    def record(members: Members, partitions: Partitions) -> dict[str, list[TopicPartition]]:
        seen.append((members, partitions))
        return good(members, partitions)

    options: ConsumerOptions = {"client_rack": "near", "partition_assignment_strategy": [record]}
    async with in_group(1, OPTIONS, options) as (cluster, consumer):
        consumer.subscribe(["t"])
        for rack in ("near", "far"):  # the replica's; a change begins a rebalance
            cluster.racks[1] = rack
            while not seen or seen[-1][1] != {T: frozenset({rack})}:
                await consumer.poll(10)
    assert seen[0][0] == {"m": Subscription(topics=("t",), rack="near")}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"assignor": lambda m, p: {}}, ValueError, "needs a name"),
        ({"assignor": Scripted(good, name="")}, ValueError, "needs a name"),
        ({"assignor": Scripted}, TypeError, "an object, not a class"),
        ({"assignor": Scripted(good, protocol=LAZY)}, ValueError, "'eager' or 'cooperative'"),
        ({"assignor": good, "group_protocol": "consumer"}, ValueError, "'classic': else the coord"),
        (
            {"assignor": good, "partition_assignment_strategy": ["range"]},
            ValueError,
            "either assignor or partition_assignment_strategy",
        ),
        ({"partition_assignment_strategy": [good, good]}, ValueError, "the same name"),
    ],
)
def test_an_assignor_that_cannot_be_used_is_refused(
    options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ConsumerSettings(bootstrap_servers="x:1", group_id="g", **options)


def test_an_assignor_is_an_object_of_three_parts() -> None:
    assert isinstance(Scripted(good), Assignor)
    assert not isinstance(good, Assignor)


# --- patterns ---


async def test_a_pattern_reads_matching_topics_and_new_ones_and_forgets_deleted_ones() -> None:
    async with in_group(1, OPTIONS) as (cluster, consumer):
        cluster.topics |= {"orders-eu": 1, "my-orders-eu": 1}
        consumer.subscribe(["t"], pattern="orders-.*")
        eu, us = TopicPartition("orders-eu", 0), TopicPartition("orders-us", 0)
        await poll_until(consumer, lambda: consumer.assignment() == {T, eu})
        cluster.topics["orders-us"] = 1
        await poll_until(consumer, lambda: consumer.assignment() == {T, eu, us})
        del cluster.topics["orders-eu"], cluster.topics["my-orders-eu"]
        await poll_until(consumer, lambda: consumer.assignment() == {T, us})
        await poll_until(
            consumer, lambda: "orders-eu" not in consumer._running().cluster.metadata.topics
        )
        await consumer.unsubscribe()
        assert not consumer.assignment()
        consumer.subscribe(["orders-us"])
        await poll_until(consumer, lambda: consumer.assignment() == {us})


async def test_a_member_whose_pattern_matches_nothing_waits_in_the_group() -> None:
    async with in_group(1, OPTIONS) as (cluster, consumer):
        consumer.subscribe(pattern="later.*")
        await poll_until(consumer, lambda: consumer.group_metadata().generation_id > 0)
        assert consumer.assignment() == frozenset()
        cluster.topics["later"] = 1
        await poll_until(consumer, lambda: consumer.assignment() == {TopicPartition("later", 0)})


def test_a_blocking_consumer_subscribes_by_pattern(group: GroupCluster) -> None:
    options: ConsumerOptions = {**OPTIONS, "group_id": "g"}
    with SyncConsumer(group.bootstrap, **options) as consumer:
        consumer.subscribe(pattern="[s-u]")
        while not (found := consumer.poll(100)):
            pass
        assert {*found} == {T}
        with pytest.raises(ValueError, match="no regular expression"):
            consumer.subscribe(pattern="(")
