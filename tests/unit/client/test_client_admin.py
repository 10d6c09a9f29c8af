"""What an administrator may conclude from an error, and from silence."""

import asyncio
import re
from collections.abc import Iterator
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any

import pytest

from quorumlog.client import Admin, KafkaError, NewTopic
from quorumlog.client.admin.asker import check_all
from quorumlog.client.admin.transactions import TransactionAdmin
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
            with pytest.raises(TypeError, match=r"must be a list of names: \['ab'\]"):
                await call("ab")


def collections_of(client: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the methods that take a collection, each with the parameter."""
    for name, method in vars(client).items():
        if not name.startswith("_") and iscoroutinefunction(method):
            for parameter in signature(method).parameters.values():
                if re.search("Iterable|Mapping", str(parameter.annotation)):
                    yield name, parameter.name


@pytest.mark.parametrize("wrong", [7, NewTopic("t")], ids=["number", "topic"])
@pytest.mark.parametrize(("method", "parameter"), [*collections_of(Admin)])
async def test_what_is_no_collection_is_refused_by_the_client_and_not_by_python(
    method: str, parameter: str, wrong: object
) -> None:
    async with fake_cluster() as cluster, Admin(cluster.bootstrap) as admin:
        await check_refusal(getattr(admin, method), parameter, wrong)


@pytest.mark.parametrize(("method", "parameter"), [*collections_of(TransactionAdmin)])
async def test_what_is_no_collection_of_transactions_is_refused(
    method: str, parameter: str
) -> None:
    async with fake_cluster() as cluster, Admin(cluster.bootstrap) as admin:
        await check_refusal(getattr(admin.transactions, method), parameter, 7)


async def check_refusal(call: Any, parameter: str, wrong: object) -> None:
    given: dict[str, object] = {
        name: {} if "Mapping" in str(other.annotation) else "topic"
        for name, other in signature(call).parameters.items()
        if other.default is Parameter.empty
    }
    with pytest.raises(TypeError, match=r"must be|is a dict") as caught:
        await call(**{**given, parameter: wrong})
    assert not re.search("object is not|has no attribute", str(caught.value))


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
