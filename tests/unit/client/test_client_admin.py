"""What an administrator may conclude from an error, and from silence."""

import asyncio

import pytest

from quorumlog.client import Admin, KafkaError, NewTopic
from quorumlog.client.admin.asker import check_all
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.client.fake_cluster import fake_cluster

EXISTS = (int(ErrorCode.TOPIC_ALREADY_EXISTS), "there")
DONE = (0, "")


@pytest.mark.parametrize(
    ("answers", "complaint", "definite"),
    [
        ({"a": EXISTS, "b": EXISTS}, "TOPIC_ALREADY_EXISTS: a: there", True),
        ({"a": EXISTS, "b": DONE}, "TOPIC_ALREADY_EXISTS: a: there", False),
        ({"a": DONE}, "UNKNOWN_SERVER_ERROR: b: left out of the answer", False),
        ({"a": EXISTS, "b": (int(ErrorCode.NOT_CONTROLLER), "")}, "a: there", False),
    ],
)
def test_an_error_is_definite_only_if_nothing_was_done(
    answers: dict[str, tuple[int, str]], complaint: str, definite: bool
) -> None:
    with pytest.raises(KafkaError, match=complaint) as caught:
        check_all(["a", "b"], answers)
    assert caught.value.definite == definite


async def test_one_name_is_not_taken_for_its_letters() -> None:
    async with fake_cluster() as cluster, Admin(cluster.bootstrap) as admin:
        for call in (admin.delete_topics, admin.describe_topics, admin.delete_consumer_groups):
            with pytest.raises(TypeError, match=r"a list of names is wanted: \['ab'\]"):
                await call("ab")


async def test_a_cluster_that_died_is_waited_for_as_long_as_was_asked() -> None:
    async with (
        fake_cluster() as cluster,
        Admin(cluster.bootstrap, default_api_timeout_ms=200) as admin,
    ):
        for broker in (1, 2):
            await cluster.kill(broker)
        async with asyncio.timeout(20):
            with pytest.raises(KafkaError):
                await admin.describe_consumer_groups(["g"])
            with pytest.raises(KafkaError):
                await admin.create_topics([NewTopic(name="t")])
