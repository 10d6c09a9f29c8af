"""The coordinators of a broker: markers to the leaders, whatever happens to these. Time jumps."""

import asyncio

import pytest

from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from tests.support.coordination.transactions_begun import open_transaction
from tests.support.transactions.coordination import T0, add, init, records_of
from tests.support.transactions.service import (
    HOME,
    ROUND_S,
    FakeBrokers,
    ServiceWorld,
    image_of,
    topic_partitions,
)

pytestmark = pytest.mark.jumping_time
CLIENT_ROUNDS = 1  # the request of the client


async def test_a_transaction_of_ten_partitions_is_complete_within_five_rounds() -> None:
    """The request, the decision, the markers and their appends, the end."""
    world = ServiceWorld()
    partitions = topic_partitions("t", 10)
    await world.lead({"t": [1 + index % 3 for index in range(10)]})
    producer = await world.opened(*partitions)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await world.committed(producer)
    decided_s = loop.time()
    await world.completed()
    append_rounds = 1  # of the markers, at the leaders: not in the time of the fake brokers
    rounds = CLIENT_ROUNDS + append_rounds + round((loop.time() - started_s) / ROUND_S)
    assert rounds <= 5
    assert round((decided_s - started_s) / ROUND_S) == 1  # the client waits for the decision alone
    assert [len(world.brokers[number].requests) for number in (1, 2, 3)] == [1, 1, 1]
    marked = [one for number in (1, 2, 3) for one in world.brokers[number].marked_partitions]
    assert sorted(marked) == partitions
    await world.stop()


async def test_a_marker_says_what_was_decided() -> None:
    async with open_transaction({"t": [2]}, T0, epoch=7) as (world, producer):
        await world.committed(producer)
        await world.completed()
        [request] = world.brokers[2].requests
        [marker] = request.markers
        said = (marker.producer_id, marker.producer_epoch, marker.transaction_result)
        assert said == (producer.producer_id, producer.epoch + 1, True)
        assert (marker.coordinator_epoch, marker.transaction_version) == (7, 2)


async def test_a_marker_follows_its_leader() -> None:
    async with open_transaction({"t": [2]}, T0) as (world, producer):
        world.brokers[2].errors[T0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        await world.committed(producer)
        await asyncio.sleep(10 * ROUND_S)
        assert world.state() is TransactionState.PREPARE_COMMIT
        assert len(world.brokers[2].requests) > 2
        world.publish(image_of({"t": [3]}))
        await world.completed()
        assert world.brokers[3].marked_partitions == [T0]


async def test_a_marker_waits_for_a_leader() -> None:
    async with open_transaction({"t": [2]}, T0) as (world, producer):
        world.publish(image_of({"t": [-1]}))
        await world.committed(producer)
        await asyncio.sleep(5 * ROUND_S)
        assert world.state() is TransactionState.PREPARE_COMMIT
        world.publish(image_of({"t": [3]}))
        await world.completed()
        assert world.brokers[2].requests == []


async def test_a_broker_dies_with_a_request_and_comes_back() -> None:
    async with open_transaction({"t": [2]}, T0) as (world, producer):
        await world.committed(producer)
        await asyncio.sleep(0.5 * ROUND_S)
        broker = world.brokers[2]
        assert broker.in_flight == 1
        broker.die()
        await asyncio.sleep(5 * ROUND_S)
        assert world.state() is TransactionState.PREPARE_COMMIT
        broker.is_up = True
        await world.completed()
        assert broker.marked_partitions == [T0, T0]


async def test_a_broker_that_hangs_holds_nothing_up_once_it_is_fenced() -> None:
    async with open_transaction({"t": [2]}, T0) as (world, producer):
        world.brokers[2].is_hanging = True
        await world.committed(producer)
        await asyncio.sleep(0.1 * ROUND_S)
        started_s = asyncio.get_running_loop().time()
        world.publish(image_of({"t": [3]}, fenced=[2]))
        await world.completed()
        assert asyncio.get_running_loop().time() - started_s < 2.5 * ROUND_S  # the marker, the end


async def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    async with open_transaction({"t": [2]}, T0) as (world, producer):
        world.brokers[2].is_hanging = True
        await world.committed(producer)
        await asyncio.sleep(ROUND_S)
        world.brokers[2].is_hanging = False
        await world.completed()
        assert world.brokers[2].marked_partitions == [T0, T0]
        assert len(world.brokers[2].connections) == 2


async def test_a_coordinator_that_was_replaced_says_so_and_sends_no_more() -> None:
    async with open_transaction({"t": [2]}, T0) as (world, producer):
        world.brokers[2].errors[T0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        await world.committed(producer)
        await asyncio.sleep(10 * ROUND_S)
        assert len(world.brokers[2].requests) == 1
        result = await world.service.ask(init())
        assert result.error_code is ErrorCode.NOT_COORDINATOR
        world.service.resigned(HOME, Epoch(1))
        assert [*world.service.coordinators()] == []


async def test_markers_of_many_transactions_share_a_request_and_one_is_under_way() -> None:
    world = ServiceWorld()
    await world.lead({"t": [2]})
    names = [f"id-{index}" for index in range(20)]
    producers = await asyncio.gather(*(world.opened(T0, name=name) for name in names))
    await world.committed(producers[0], names[0])
    await asyncio.sleep(0.1 * ROUND_S)
    await asyncio.gather(*map(world.committed, producers[1:], names[1:]))
    for name in names:
        await world.completed(name)
    broker = world.brokers[2]
    assert [len(request.markers) for request in broker.requests] == [1, 19]
    assert broker.in_flight_max == 1
    await world.stop()


# --- Partitions that are no more ---


async def test_no_marker_is_waited_for_whose_partition_is_deleted() -> None:
    async with open_transaction({"t": [2], "u": [3]}, T0, TopicPartition("u", 0)) as (
        world,
        producer,
    ):
        world.brokers[2].errors[T0] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await world.committed(producer)
        await asyncio.sleep(5 * ROUND_S)
        assert world.state() is TransactionState.PREPARE_COMMIT  # that broker may be behind
        world.publish(image_of({"u": [3]}), "t")
        await world.completed()
        assert world.brokers[3].marked_partitions == [TopicPartition("u", 0)]


async def test_a_partition_that_was_deleted_before_the_decision_needs_no_marker() -> None:
    async with open_transaction({"t": [2], "u": [3]}, T0, TopicPartition("u", 0)) as (
        world,
        producer,
    ):
        world.publish(image_of({"u": [3]}), "t")
        await world.committed(producer)
        await world.completed()
        assert world.brokers[2].requests == []


async def test_a_new_topic_of_the_name_gets_the_marker_of_the_deleted_one() -> None:
    """A leader that knew it earlier may have taken records of the transaction into it."""
    async with open_transaction({"t": [2]}, T0) as (world, producer):
        world.brokers[2].errors[T0] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await world.committed(producer)
        await asyncio.sleep(5 * ROUND_S)
        world.publish(image_of({"t": [3]}), "t")
        await world.completed()
        assert world.brokers[3].marked_partitions == [T0]


async def test_nothing_is_added_while_the_image_shows_another_coordinator() -> None:
    """Else the next coordinator, whose image lacks a new topic, might take it for a deleted one."""
    world = ServiceWorld()
    await world.lead({"t": [2]})
    producer = await world.begun()
    written = len(world.log.batches)
    for home_leader, home_epoch in ((3, 1), (1, 2)):
        image = image_of({"t": [2]}, home_leader=home_leader, home_epoch=home_epoch)
        world.publish(image)
        result = await world.service.ask(add(producer, T0))
        assert result.partitions == {T0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert len(world.log.batches) == written
    world.service.became_leader(HOME, Epoch(2))
    assert (await world.service.ask(add(producer, T0))).partitions == {T0: ErrorCode.NONE}
    await world.stop()


# --- Levels and producer ids ---


async def test_records_have_the_form_of_the_level_in_force() -> None:
    world = ServiceWorld()
    await world.lead({"t": [2]})
    for level, form in ((0, 0), (2, 1), (1, 1), (0, 0)):
        world.publish(image_of({"t": [2]}, features={"transaction.version": level}))
        await world.begun()
        [record] = records_of(world.log.batches[-1])
        assert record.value_version == form
    await world.stop()


async def test_without_a_producer_id_the_client_tries_again() -> None:
    world = ServiceWorld()
    await world.lead({})

    async def none_left() -> tuple[ErrorCode, int]:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1

    world.service._next_producer_id = none_left
    result = await world.service.ask(init())
    assert result.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.log.batches == []
    await world.stop()


async def test_a_service_that_stops_answers_what_is_open() -> None:
    world = ServiceWorld(FakeBrokers())
    await world.lead({"t": [2]})
    asked = world.service.ask(init())
    await world.stop()
    assert (await asked).error_code is ErrorCode.NOT_COORDINATOR
    assert (await world.service.ask(init())).error_code is ErrorCode.NOT_COORDINATOR
