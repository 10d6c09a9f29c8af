"""Clients of our own at three real brokers that authenticate them, and each other, by SASL."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from quorumlog import LocalCluster
from quorumlog.addresses import host_and_port
from quorumlog.bench.load import Driver
from quorumlog.bench.running import Plan, run_scenarios
from quorumlog.chaos.drivers.registry import DRIVERS, DriverUnavailable, load_driver
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
from quorumlog.client.security import SecuritySettings
from quorumlog.doctor import examine

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


@asynccontextmanager
async def closing(client: Any) -> AsyncIterator[Any]:
    try:
        yield client
    finally:
        await client.close()


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


# --- the lab ---


@pytest.mark.parametrize("name", DRIVERS)
@pytest.mark.parametrize("login", [PLAIN, BY_SCRAM])
async def test_every_driver_of_the_lab_logs_in(
    bootstrap: str, name: str, login: dict[str, Any]
) -> None:
    """A topic, a record and its offset; with a wrong password, an error."""
    try:
        driver = load_driver(name, SecuritySettings(**login))
    except DriverUnavailable as error:
        pytest.skip(str(error))
    topic = f"of-{name}-{login['sasl_username']}"
    await driver.create_topic(bootstrap, topic, partitions=1, replication_factor=3)
    async with (
        closing(await driver.producer(bootstrap, "p")) as producer,
        closing(await driver.consumer(bootstrap, "c")) as consumer,
    ):
        sent = await producer.send(topic, 0, b"one")
        assert await sent == 0
        await consumer.assign(topic, [0])
        async with asyncio.timeout(20):
            while not (records := await consumer.poll(500)):
                pass
        assert [one.value for one in records] == [b"one"]


def test_a_chaos_run_at_a_secured_cluster_is_valid(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    file.write_text(
        f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="bob" password="pw";\n'
    )
    words = ["chaos", "run", "--fault", "none", "--duration", "3s", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "quorumlog", *words, "--command-config", str(file), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["valid"] is True
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert written
    assert not any(b'"pw"' in content for content in written)


def test_commands_log_in(bootstrap: str) -> None:
    login = ["--bootstrap", bootstrap, "--sasl", "scram-sha-512", "--user", "bob"]
    environment = {**os.environ, "QUORUMLOG_PASSWORD": "pw"}

    def command(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "quorumlog", *words, *login],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )

    assert "t" in command("topics", "list").stdout.splitlines()
    made = command("topics", "create", "lines", "--partitions", "1")
    assert made.returncode == 0, made.stderr
    assert command("produce", "lines", stdin="a\nb\n").returncode == 0
    assert command("consume", "lines", "--from", "beginning", "--max", "2").stdout == "a\nb\n"
    environment["QUORUMLOG_PASSWORD"] = "wrong"
    refused = command("topics", "list")
    assert refused.returncode == 1
    assert "SASL_AUTHENTICATION_FAILED" in refused.stderr
    assert "wrong" not in refused.stderr


@pytest.mark.parametrize("driver", ["client", "confluent"])
def test_the_scenarios_of_the_bench_log_in(bootstrap: str, driver: Driver) -> None:
    if driver == "confluent":
        pytest.importorskip("confluent_kafka")
    plan = Plan(only=(2,), messages=100, modes=("pipelined",), driver=driver, runs=1)
    found = run_scenarios(plan, {"bootstrap_servers": bootstrap, **BY_SCRAM}, lambda *_: None)
    runs = [one for each in found.results.throughput.values() for one in each]
    assert {one.acknowledged for one in runs} == {100}


def test_the_doctor_logs_in(bootstrap: str) -> None:
    places = [host_and_port(one) for one in bootstrap.split(",")]
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login = SecuritySettings(**PLAIN).connection_security()
    assert asyncio.run(examine(places, settings, login)).findings == ()
    wrong = SecuritySettings(**{**PLAIN, "sasl_password": "wrong"}).connection_security()
    found = asyncio.run(examine(places, settings, wrong)).findings
    assert {one.name for one in found} == {"unauthenticated"}
    assert "Invalid username or password" in found[0].why
