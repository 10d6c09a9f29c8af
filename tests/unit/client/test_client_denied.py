"""A missing right is an error of the next call, with the right in its message, and not a wait."""

import pytest

from quorumlog.client import ErrorCode, KafkaError, Producer, TopicPartition
from quorumlog.client.errors import TopicDenied
from quorumlog.client.io.coordinator import commit_error
from tests.support.client.fake_cluster import FETCH, LIST_OFFSETS, FakeCluster
from tests.support.client.opened import consuming, producing
from tests.support.client.refusals import refused

T, U = TopicPartition("t", 0), TopicPartition("u", 0)
LACKS_READ = "TOPIC_AUTHORIZATION_FAILED: the user may lack READ on topic 't'"


def deny(cluster: FakeCluster, api: int) -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    cluster.fault = lambda _broker, asked: code if asked == api else None


async def test_a_poll_raises_for_an_assigned_topic_and_reads_once_it_is_allowed() -> None:
    async with consuming(auto_offset_reset="earliest") as (cluster, consumer):
        cluster.denied.add("t")
        consumer.assign([T])
        for _ in range(2):  # each response with the error is raised
            with refused(LACKS_READ, definite=True):
                await consumer.poll(20_000)
        with refused(LACKS_READ, definite=True):
            await consumer.position(T)
        cluster.denied.clear()
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"0")
        while True:
            try:
                records = await consumer.poll(20_000)
            except KafkaError:
                continue  # of a response before the right was there
            assert [one.value for one in records[T]] == [b"0"]
            return


async def test_a_denied_topic_does_not_hide_the_records_of_another() -> None:
    async with consuming(auto_offset_reset="earliest") as (cluster, consumer):
        cluster.topics["u"] = 1
        cluster.denied.add("t")
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("u", b"0")
        consumer.assign([T, U])
        seen: list[bytes | None] = []
        errors: list[str] = []
        while not (seen and errors):
            try:
                for records in (await consumer.poll(20_000)).values():
                    seen += [one.value for one in records]
            except KafkaError as error:
                errors.append(str(error))
        assert seen == [b"0"]
        assert {*errors} == {LACKS_READ}


async def test_another_assignment_ends_the_error() -> None:
    async with consuming(auto_offset_reset="earliest") as (cluster, consumer):
        cluster.topics["u"] = 1
        cluster.denied.add("t")
        consumer.assign([T])
        with refused(LACKS_READ, definite=True):
            await consumer.poll(20_000)
        consumer.assign([U])
        assert await consumer.poll(300) == {}


@pytest.mark.parametrize("api", [FETCH, LIST_OFFSETS])
async def test_a_leader_that_denies_is_raised_by_poll(api: int) -> None:
    async with consuming(auto_offset_reset="earliest") as (cluster, consumer):
        deny(cluster, api)
        consumer.assign([T])
        with pytest.raises(TopicDenied, match=r"the user may lack (READ|DESCRIBE) on ") as error:
            await consumer.poll(20_000)
        assert error.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (error.value.topic, error.value.definite) == ("t", True)


async def test_a_producer_names_the_right_to_write() -> None:
    async with producing() as (cluster, producer):
        cluster.denied.add("t")
        with refused("TOPIC_AUTHORIZATION_FAILED: the user may lack WRITE on topic 't'"):
            await producer.send("t", b"0")


@pytest.mark.parametrize("code", ["GROUP", "TOPIC"])
def test_a_commit_names_the_right_to_read(code: str) -> None:
    error = commit_error("g", {T: ErrorCode[f"{code}_AUTHORIZATION_FAILED"]})
    assert error is not None
    assert error.definite
    named = "group g" if code == "GROUP" else "t-0"
    assert error.message.endswith(f"the user may lack READ on {named}")
