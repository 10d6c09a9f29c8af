"""TLS and SASL of the drivers: the options of each library, and the runs that may use them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.drivers import registry
from quorumlog.chaos.drivers.registry import DRIVERS, load_driver
from quorumlog.chaos.drivers.security import PLAINTEXT, of_client, of_kafka_python
from quorumlog.chaos.faults.links import OF_REQUESTS
from quorumlog.chaos.faults.registry import STEP_FAULTS
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.client.librdkafka import librdkafka_settings
from quorumlog.client.security import SecuritySettings
from quorumlog.node.inter_broker import unsigned_token
from tests.support.chaos.fake_cluster import FakeCluster

SCRAM = SecuritySettings(
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username="alice",
    sasl_password="secret",
)
BEARER = SecuritySettings(
    security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", sasl_token=lambda: "t"
)
TLS = SecuritySettings(
    security_protocol="SSL", ssl_ca="ca.pem", ssl_certificate="-----BEGIN X", ssl_key="k.pem"
)


def test_the_options_of_librdkafka() -> None:
    assert librdkafka_settings(SCRAM) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
    }
    assert librdkafka_settings(replace(TLS, ssl_check_hostname=False)) == {
        "security.protocol": "SSL",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.pem": "-----BEGIN X",
        "ssl.key.location": "k.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    token, expiry_s = librdkafka_settings(BEARER)["oauth_cb"]("")
    assert token == "t"
    assert expiry_s > 1e9


def test_the_options_of_the_other_libraries() -> None:
    assert of_kafka_python(SCRAM) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
    }
    assert of_kafka_python(BEARER)["sasl_oauth_token_provider"].token() == "t"
    assert of_client(SCRAM) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "alice",
        "sasl_password": "secret",
    }
    assert of_client(PLAINTEXT) == {}


@pytest.mark.parametrize("name", ["client", "aiokafka", "kafka-python"])
def test_files_that_cannot_be_used_are_found_before_the_run(name: str) -> None:
    with pytest.raises(ValueError, match=r"CA certificates ca.pem: no such file"):
        load_driver(name, TLS)


def test_every_driver_here_can_be_secured_and_keeps_its_plain_self() -> None:
    for name in DRIVERS:
        driver: Any = registry._find(name)
        secured = driver.secured(SCRAM)
        assert "secret" in secured._at("h:1").values()
        assert driver._at("h:1") == {driver.bootstrap_name: "h:1"}
        assert secured.capabilities == driver.capabilities


def test_a_driver_of_another_package_without_the_method_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_find", lambda _: SimpleNamespace(capabilities=frozenset()))
    with pytest.raises(ValueError, match="driver other has no method `secured`"):
        load_driver("other", SCRAM)
    load_driver("other")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bootstrap": None}, "is for a cluster that runs already"),
        ({"workload": "mirror", "security": BEARER}, "OAUTHBEARER has no login that can be passed"),
    ],
)
def test_runs_that_cannot_be_secured_are_refused(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    given = {"bootstrap": "h:1", "faults": (), "security": SCRAM, **options}
    with pytest.raises(ValueError, match=why):
        run(RunSettings(out=tmp_path, **given), lambda *_: None)


def test_a_workload_with_users_needs_the_login_of_a_super_user(tmp_path: Path) -> None:
    settings = RunSettings(out=tmp_path, bootstrap="h:1", workload="authorized", faults=())
    with pytest.raises(ValueError, match="workload authorized creates users and ACLs"):
        run(settings, lambda *_: None)


@pytest.mark.parametrize("has_tls", [False, True])
def test_faults_of_requests_need_bytes_that_can_be_read(has_tls: bool) -> None:
    cluster: Any = FakeCluster()
    cluster.spec = SimpleNamespace(security=SimpleNamespace(tls=has_tls))
    back_end = LocalProcesses(cast(Any, cluster))
    refused = {name for name, kind in STEP_FAULTS.items() if not kind.imposes <= back_end.effects}
    expected = {name for name, kind in STEP_FAULTS.items() if kind.imposes & OF_REQUESTS}
    assert refused == (expected if has_tls else set())
    for name in (*expected, "observe"):
        assert ("cannot read requests" in back_end.why_not(name)) is has_tls


async def test_a_client_of_librdkafka_that_waits_for_a_token_keeps_no_other_waiting() -> None:
    """Its constructor requests a token, and waits until it has one."""
    turns = 0

    async def turn_on() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    tokens: list[int] = []

    def token() -> str:
        tokens.append(turns)
        return unsigned_token("alice")

    turning = asyncio.create_task(turn_on())
    driver = load_driver("confluent", replace(BEARER, sasl_token=token))
    producer = await driver.producer("127.0.0.1:1", "p1")
    assert turns > tokens[0] + 100  # the loop went on while the constructor waited
    turning.cancel()
    await producer.close()
