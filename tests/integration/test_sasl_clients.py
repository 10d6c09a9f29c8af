"""Real clients authenticate at a cluster: passwords, tokens, changed users, renewed sessions."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiokafka
import confluent_kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from kafka import KafkaProducer

from quorumlog import Admin, LocalCluster
from quorumlog.client.descriptions import NewScramCredential
from tests.unit.broker.authentication.test_mechanisms import unsigned

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("sasl_clients")]
WAIT_S = 30.0
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)
REAUTH_MS = 2000
ALICE = {"sasl_plain_username": "alice", "sasl_plain_password": "s3cret"}


def config(directory: Path, host_port: str) -> dict[str, str]:
    return {
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,TOKENS:SASL_PLAINTEXT"
        ),
        "control.oauth.key.file": str(directory / "oauth.key"),
        "listener.name.clients.sasl.enabled.mechanisms": ",".join([*MECHANISMS, "OAUTHBEARER"]),
        "sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="s3cret";'
        ),
        "listener.name.clients.connections.max.reauth.ms": str(REAUTH_MS),
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.sasl.oauthbearer.jwks.endpoint.url": host_port,
        "listener.name.tokens.sasl.oauthbearer.expected.audience": "quorumlog",
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("keys")
    keys = (directory / "oauth.key.jwks.json").as_uri()
    listeners = ["CLIENTS://127.0.0.1", "TOKENS://127.0.0.1"]
    with LocalCluster(nodes=1, listeners=listeners, config=config(directory, keys)) as running:
        asyncio.run(set_password(running, "alice", "s3cret"))
        yield running


async def set_password(cluster: LocalCluster, user: str, password: str) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.alter_user_scram_credentials(
            [NewScramCredential(user=user, mechanism=one, password=password) for one in SCRAM]
        )


async def delete_user(cluster: LocalCluster, user: str) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.alter_user_scram_credentials(deletions=[(user, one) for one in SCRAM])


def address(cluster: LocalCluster, name: str = "CLIENTS") -> str:
    listeners = cluster.nodes[0].listeners
    return next(one.advertised for one in listeners if one.name == name)


def log_of(cluster: LocalCluster) -> str:
    return (cluster.directory / "node-1" / "node.log").read_text()


def confluent(
    cluster: LocalCluster, listener: str = "CLIENTS", **options: Any
) -> tuple[confluent_kafka.Producer, list[confluent_kafka.KafkaError]]:
    errors: list[confluent_kafka.KafkaError] = []
    settings = {
        "bootstrap.servers": address(cluster, listener),
        "security.protocol": "SASL_PLAINTEXT",
        "error_cb": errors.append,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    return confluent_kafka.Producer(settings), errors


def produced(producer: confluent_kafka.Producer, count: int = 1) -> int:
    """The number of records that a broker acknowledged."""
    acknowledged: list[object] = []

    def delivered(error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is None:
            acknowledged.append(None)

    for _ in range(count):
        producer.produce("t", b"v", on_delivery=delivered)
    producer.flush(WAIT_S)
    return len(acknowledged)


def first_error(
    producer: confluent_kafka.Producer, errors: list[confluent_kafka.KafkaError]
) -> confluent_kafka.KafkaError:
    deadline_s = time.monotonic() + WAIT_S
    while not errors:
        assert time.monotonic() < deadline_s
        producer.poll(0.1)
    return errors[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in_by_a_password(cluster: LocalCluster, mechanism: str) -> None:
    options = {"sasl_mechanism": mechanism, "sasl_username": "alice"}
    producer, errors = confluent(cluster, **options, sasl_password="s3cret")
    assert produced(producer) == 1
    assert errors == []
    for user in ({"sasl_password": "wrong"}, {"sasl_username": "carol", "sasl_password": "s3cret"}):
        refused = first_error(*confluent(cluster, **{**options, **user}))
        assert refused.code() == confluent_kafka.KafkaError._AUTHENTICATION
        sentence = "Invalid username or password" if mechanism == "PLAIN" else "invalid credentials"
        assert sentence in refused.str()
        assert "carol" not in refused.str()
    assert "s3cret" not in log_of(cluster)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in_by_a_password(cluster: LocalCluster, mechanism: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=address(cluster),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        **ALICE,
    )
    assert producer.send("t", b"v").get(WAIT_S).offset >= 0
    producer.close()


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
    async def token(self) -> str:
        return unsigned({"sub": "alice", "exp": int(time.time()) + 60})


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
async def test_aiokafka_logs_in(cluster: LocalCluster, mechanism: str) -> None:
    login = {"sasl_oauth_token_provider": Tokens()} if mechanism == "OAUTHBEARER" else ALICE
    options = {
        "bootstrap_servers": address(cluster),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    async with aiokafka.AIOKafkaProducer(**options, **login) as producer:
        assert (await producer.send_and_wait("t", b"v")).offset >= 0
    if mechanism != "OAUTHBEARER":
        wrong = aiokafka.AIOKafkaProducer(**options, **{**ALICE, "sasl_plain_password": "x"})
        with pytest.raises(aiokafka.errors.KafkaError):
            await wrong.start()
        await wrong.stop()


def unsecured(cluster: LocalCluster, listener: str) -> tuple[confluent_kafka.Producer, list[Any]]:
    return confluent(
        cluster,
        listener,
        sasl_mechanism="OAUTHBEARER",
        enable_sasl_oauthbearer_unsecure_jwt=True,
        sasl_oauthbearer_config="principal=alice",
    )


def test_confluent_kafka_logs_in_by_a_token_without_signature(cluster: LocalCluster) -> None:
    producer, _ = unsecured(cluster, "CLIENTS")
    assert produced(producer) == 1


def test_where_tokens_are_signed_none_without_a_signature_is_accepted(
    cluster: LocalCluster,
) -> None:
    assert "invalid_token" in first_error(*unsecured(cluster, "TOKENS")).str()


def oidc(cluster: LocalCluster, secret: str) -> tuple[confluent_kafka.Producer, list[Any]]:
    return confluent(
        cluster,
        "TOKENS",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_client_id="alice",
        sasl_oauthbearer_client_secret=secret,
        sasl_oauthbearer_scope="all",
        sasl_oauthbearer_token_endpoint_url=f"http://{cluster.nodes[0].control}/oauth2/token",
    )


def test_confluent_kafka_logs_in_by_a_token_of_the_issuer(cluster: LocalCluster) -> None:
    producer, errors = oidc(cluster, "s3cret")
    assert produced(producer) == 1
    assert errors == []
    assert "invalid_client" in first_error(*oidc(cluster, "wrong")).str()


def counted(cluster: LocalCluster, name: str) -> int:
    """A counter of the node's metrics."""
    with urlopen(f"http://{cluster.nodes[0].control}/metrics") as response:
        lines = response.read().decode().splitlines()
    full = f"kafka_server_socket_server_metrics_{name}_total "
    [count] = [line.removeprefix(full) for line in lines if line.startswith(full)]
    return int(float(count))


def test_a_client_authenticates_again_before_its_session_ends(cluster: LocalCluster) -> None:
    """librdkafka does so on the same connection: no request of it is lost meanwhile."""
    producer, errors = confluent(
        cluster, sasl_mechanism="SCRAM-SHA-512", sasl_username="alice", sasl_password="s3cret"
    )
    before = counted(cluster, "successful_reauthentication")
    ends_s = time.monotonic() + 3 * REAUTH_MS / 1000
    while time.monotonic() < ends_s:
        assert produced(producer) == 1
        time.sleep(0.1)
    assert errors == []
    assert counted(cluster, "successful_reauthentication") - before >= 2
    assert counted(cluster, "expired_connections_killed") == 0


def test_a_changed_password_counts_for_the_next_authentication(cluster: LocalCluster) -> None:
    asyncio.run(set_password(cluster, "dora", "old"))
    options = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "dora"}
    connected, errors = confluent(cluster, **options, sasl_password="old")
    assert produced(connected) == 1
    asyncio.run(set_password(cluster, "dora", "new"))
    assert produced(connected) == 1  # its session lasts
    changed, _ = confluent(cluster, **options, sasl_password="new")
    assert produced(changed) == 1
    authentication = confluent_kafka.KafkaError._AUTHENTICATION
    assert first_error(connected, errors).code() == authentication  # at the next one
    asyncio.run(delete_user(cluster, "dora"))
    refused = first_error(*confluent(cluster, **options, sasl_password="new"))
    assert refused.code() == authentication


def test_fifty_clients_with_wrong_passwords_are_refused_and_a_right_one_is_served(
    cluster: LocalCluster,
) -> None:
    options = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "alice"}
    wrong = [confluent(cluster, **options, sasl_password="wrong") for _ in range(50)]
    right, errors = confluent(cluster, **options, sasl_password="s3cret")
    assert produced(right, count=10) == 10
    assert errors == []
    for client, refused in wrong:
        first_error(client, refused)


def test_no_description_and_no_file_that_others_read_has_a_password(cluster: LocalCluster) -> None:
    async def described() -> str:
        async with Admin(cluster.bootstrap) as admin:
            return repr(await admin.describe_configs("broker", "1"))

    text = asyncio.run(described())
    assert "sasl.jaas.config" in text
    assert "s3cret" not in text
    assert "s3cret" not in json.dumps(cluster.status())
