"""Clients of our own at three real brokers that authenticate them, and each other, by SASL."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn

import pytest

from quorumlog import LocalCluster
from quorumlog.client import (
    Admin,
    Consumer,
    ErrorCode,
    KafkaError,
    NewScramCredential,
    NewTopic,
    Producer,
    TopicPartition,
)

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("secured_clients")]
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = 'username="broker" password="b" user_broker="b" user_alice="secret"'
CONFIG = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.jaas.config": f"{MODULE} required {USERS};",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "connections.max.reauth.ms": "1500",
}
PLAIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "alice",
    "sasl_password": "secret",
}
BOB: dict[str, Any] = {**PLAIN, "sasl_username": "bob", "sasl_password": "pw"}
BY_SCRAM: dict[str, Any] = {**BOB, "sasl_mechanism": "SCRAM-SHA-512"}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(nodes=3, config=CONFIG) as cluster:
        asyncio.run(prepare(cluster.bootstrap))
        yield cluster.bootstrap


async def prepare(bootstrap: str) -> None:
    async with Admin(bootstrap, **PLAIN) as admin:
        await admin.create_topics([NewTopic("t", num_partitions=3, replication_factor=3)])
        new = NewScramCredential(user="bob", password="pw", mechanism="SCRAM-SHA-512")
        await admin.alter_user_scram_credentials([new])


async def test_records_arrive_while_sessions_are_renewed(bootstrap: str) -> None:
    """Each connection authenticates again several times; replication and commits go on, too."""
    sent: set[bytes] = set()
    received: list[bytes] = []
    async with (
        Producer(bootstrap, **BY_SCRAM) as producer,
        Consumer(bootstrap, group_id="g", auto_offset_reset="earliest", **PLAIN) as consumer,
    ):
        consumer.subscribe(["t"])
        end_s = time.monotonic() + 5
        while time.monotonic() < end_s:
            values = [b"%d" % (len(sent) + n) for n in range(50)]
            deliveries = [await producer.send("t", value, key=value) for value in values]
            for delivery in deliveries:
                await delivery
            sent.update(values)
            for records in (await consumer.poll(50)).values():
                received += [record.value or b"" for record in records]
        async with asyncio.timeout(20):
            while len(received) < len(sent):
                for records in (await consumer.poll(200)).values():
                    received += [record.value or b"" for record in records]
    assert sorted(received) == sorted(sent)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({**PLAIN, "sasl_password": "wrong"}, "Invalid username or password (check the user"),
        ({**BY_SCRAM, "sasl_password": "wrong"}, "invalid credentials with SASL mechanism SCRAM"),
        ({**BY_SCRAM, "sasl_username": "carol"}, "invalid credentials with SASL mechanism SCRAM"),
        ({**BY_SCRAM, "sasl_mechanism": "SCRAM-SHA-256"}, "invalid credentials with SASL"),
    ],
)
@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
async def test_a_wrong_login_is_an_error_at_once(
    bootstrap: str, kind: Any, options: dict[str, Any], why: str
) -> None:
    """Not after `socket_connection_setup_timeout_ms`, ten seconds."""
    client = kind(bootstrap, **options)
    with pytest.raises(KafkaError) as refusal:
        async with asyncio.timeout(8):
            await client.start()
    assert refusal.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert refusal.value.definite
    assert not refusal.value.retriable
    assert why in str(refusal.value)


async def test_a_mechanism_that_the_listener_lacks_is_named(bootstrap: str) -> None:
    options: dict[str, Any] = {**PLAIN, "sasl_mechanism": "OAUTHBEARER", "sasl_token": "t"}
    del options["sasl_username"], options["sasl_password"]
    with pytest.raises(KafkaError, match="it has: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        await Admin(bootstrap, **options).start()


async def test_a_deleted_user_gets_the_error_of_the_next_call(bootstrap: str) -> None:
    """At the renewal of the sessions: `poll`, `send` and their deliveries raise it."""
    dave: dict[str, Any] = {**BY_SCRAM, "sasl_username": "dave"}
    new = NewScramCredential(user="dave", password="pw", mechanism="SCRAM-SHA-512")
    async with Admin(bootstrap, **PLAIN) as admin:
        await admin.alter_user_scram_credentials([new])
        async with (
            asyncio.timeout(30),
            Producer(bootstrap, **dave) as producer,
            Consumer(bootstrap, auto_offset_reset="earliest", **dave) as consumer,
        ):
            await producer.send_and_wait("t", b"1")
            consumer.assign([TopicPartition("t", one) for one in range(3)])
            assert await consumer.poll(5_000)
            await admin.alter_user_scram_credentials([], [("dave", "SCRAM-SHA-512")])
            with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
                await repeat(lambda: producer.send_and_wait("t", b"2"))
            with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
                await repeat(lambda: consumer.poll(100))


async def repeat(call: Callable[[], Awaitable[object]]) -> NoReturn:
    while True:
        await call()
        await asyncio.sleep(0.05)
