"""The settings of clients of several libraries for a secured cluster, as values and as text."""

import ast
import asyncio
import json
import ssl
from base64 import urlsafe_b64decode
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cli.client_properties import client_options
from quorumlog.client.settings import AdminSettings, build
from quorumlog.cluster import InvalidArgument, LocalCluster, client_configs, layout, security
from quorumlog.cluster.issued_tokens import TokenRequest
from quorumlog.cluster.security import SecurityOptions

PASSWORD = 'a"b\\c=dé'


def _cluster(directory: Path, **options: Any) -> LocalCluster:
    protection: SecurityOptions = {**options}  # type: ignore[typeddict-item]  # of these names
    cluster = LocalCluster(directory, nodes=2, port=9092, **protection)
    _, users = security.read_options(protection)
    layout.found(directory, cluster.spec, users)
    layout.save(directory, cluster.spec)
    return cluster


@pytest.fixture
def scram(tmp_path: Path) -> LocalCluster:
    users = {"bob": "b", "alice": PASSWORD}
    return _cluster(
        tmp_path, tls=True, sasl="scram-sha-256", users=users, acls=True, super_users=["alice"]
    )


def test_each_library_has_its_own_names(scram: LocalCluster) -> None:
    ca = str((scram.directory / "security/ca.pem").resolve())
    servers = "127.0.0.1:9092,127.0.0.1:9093"
    assert scram.client_config("bob", "confluent") == {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "bob",
        "sasl.password": "b",
        "ssl.ca.location": ca,
    }
    python = {
        "bootstrap_servers": servers,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "bob",
        "sasl_plain_password": "b",
    }
    assert scram.client_config("bob", "kafka-python") == {**python, "ssl_cafile": ca}
    aiokafka = scram.client_config("bob", "aiokafka")
    context = aiokafka.pop("ssl_context")
    assert aiokafka == python
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert scram.client_config("bob", "java") == {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="bob" password="b";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca,
    }
    kafkajs = scram.client_config("bob", "kafkajs")
    assert kafkajs["brokers"] == servers.split(",")
    assert kafkajs["sasl"] == {"mechanism": "scram-sha-256", "username": "bob", "password": "b"}
    assert kafkajs["ssl"]["ca"][0].startswith("-----BEGIN CERTIFICATE-----")
    assert scram.client_config("bob", "franz-go")["seeds"] == servers.split(",")


def test_the_default_is_a_super_user(scram: LocalCluster) -> None:
    settings = scram.client_config()
    assert settings["sasl_username"] == "alice"
    assert settings["sasl_password"] == PASSWORD
    build(AdminSettings, settings.pop("bootstrap_servers"), settings)  # accepts its names


def test_the_owner_of_the_directory_is_the_brokers_user(scram: LocalCluster) -> None:
    own = scram.own_client()
    assert own["bootstrap_servers"] == "127.0.0.1:29092,127.0.0.1:29093"
    assert (own["sasl_mechanism"], own["sasl_username"]) == ("PLAIN", "broker")
    build(AdminSettings, own.pop("bootstrap_servers"), own)


def test_unknown_users_and_styles_are_named(scram: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="has no user eve: there are bob, alice"):
        scram.client_config("eve")
    with pytest.raises(InvalidArgument, match="no style ruby: there are confluent, aiokafka"):
        scram.client_config(style="ruby")
    plain = LocalCluster(tmp_path / "plain", port=9092)
    assert plain.client_config(style="confluent") == {"bootstrap.servers": plain.bootstrap}
    assert plain.own_client() == {"bootstrap_servers": plain.bootstrap}
    with pytest.raises(InvalidArgument, match="the cluster has no users"):
        plain.client_config("alice")


def test_users_of_oauthbearer_have_tokens_without_a_signature(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path, sasl="oauthbearer", users={"alice": None})
    confluent = cluster.client_config("alice", "confluent")
    assert confluent["sasl.oauthbearer.config"] == "principal=alice"
    assert (
        'unsecuredLoginStringClaim_sub="alice"'
        in cluster.client_config("alice", "java")["sasl.jaas.config"]
    )
    providers = [
        cluster.client_config("alice", style)["sasl_oauth_token_provider"]
        for style in ("kafka-python", "aiokafka")
    ]
    tokens = [providers[0].token(), asyncio.run(providers[1].token())]
    tokens.append(cluster.client_config("alice")["sasl_token"]())
    for token in tokens:
        _, claims, signature = token.split(".")
        assert json.loads(urlsafe_b64decode(claims + "=="))["sub"] == "alice"
        assert signature == ""
    with pytest.raises(InvalidArgument, match="kafkajs takes a function"):
        cluster.client_config("alice", "kafkajs")


@pytest.mark.parametrize("tls", [False, True])
def test_users_of_oauthbearer_with_passwords_have_issuers(tmp_path: Path, tls: bool) -> None:
    shape = {"controllers": 1, "brokers": 2}  # a controller alone has no credentials of users
    cluster = _cluster(tmp_path, **shape, tls=tls, sasl="oauthbearer", users={"al": "secret"})
    way = client_configs.access(cluster.directory, cluster.spec, None)
    scheme, ca = ("https", str(way.ca)) if tls else ("http", None)
    brokers = [node for node in cluster.nodes if node.is_broker]
    assert way.token_urls == tuple(f"{scheme}://{node.control}/oauth2/token" for node in brokers)
    assert cluster.client_config("al", "confluent").get("https.ca.location") == ca
    properties = cluster.client_config("al", "java")
    assert ("ssl.truststore.location" in properties["sasl.jaas.config"]) == tls
    for style in ("java", "confluent"):  # commands of quorumlog read the same settings
        token: partial[str] = client_options(cluster.client_config("al", style))["sasl_token"]
        url, request = token.args
        assert url == way.token_urls[0]
        assert request == TokenRequest(client_id="al", secret="secret", ca=ca)


def test_users_of_tls_alone_have_certificates(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path, tls=True, users={"alice": None})
    place = (tmp_path / "security").resolve()
    confluent = cluster.client_config("alice", "confluent")
    assert confluent["security.protocol"] == "SSL"
    assert confluent["ssl.certificate.location"] == str(place / "alice.pem")
    assert confluent["ssl.key.location"] == str(place / "alice.key")
    java = cluster.client_config("alice", "java")
    text = Path(java["ssl.keystore.location"]).read_text()
    assert "-----BEGIN PRIVATE KEY-----" in text
    assert "-----BEGIN CERTIFICATE-----" in text
    cluster.client_config("alice", "aiokafka")["ssl_context"]  # has loaded the pair
    assert set(cluster.client_config("alice", "kafkajs")["ssl"]) == {"ca", "cert", "key"}


@pytest.mark.parametrize("style", ["confluent", "kafka-python", "quorumlog"])
def test_the_text_for_python_is_the_values(scram: LocalCluster, style: str) -> None:
    way = client_configs.access(scram.directory, scram.spec, "alice")
    assert ast.literal_eval(client_configs.config_text(way, style)) == scram.client_config(
        "alice", style
    )


def test_the_text_for_aiokafka_is_python(scram: LocalCluster) -> None:
    way = client_configs.access(scram.directory, scram.spec, "alice")
    text = client_configs.config_text(way, "aiokafka")
    head, brace, rest = text.partition("{")
    found: dict[str, Any] = {}
    exec(f"{head}settings = {brace}{rest}", found)
    assert found["settings"]["sasl_plain_password"] == PASSWORD
    assert isinstance(found["settings"]["ssl_context"], ssl.SSLContext)


def test_the_text_for_java_escapes_as_properties_do(scram: LocalCluster) -> None:
    way = client_configs.access(scram.directory, scram.spec, "alice")
    lines = client_configs.config_text(way, "java").splitlines()
    [jaas] = [line for line in lines if line.startswith("sasl.jaas.config=")]
    # JAAS escapes the quote and the backslash; the file escapes each backslash of the result.
    assert jaas.endswith('password="a\\\\"b\\\\\\\\c=d\\u00e9";')
    assert jaas.isascii()


def test_the_texts_for_javascript_and_go_name_users_and_files(scram: LocalCluster) -> None:
    way = client_configs.access(scram.directory, scram.spec, "bob")
    javascript = client_configs.config_text(way, "kafkajs")
    assert '"mechanism": "scram-sha-256", "username": "bob"' in javascript
    assert "fs.readFileSync(" in javascript
    go = client_configs.config_text(way, "franz-go")
    assert 'kgo.SeedBrokers("127.0.0.1:9092", "127.0.0.1:9093"),' in go
    assert 'scram.Auth{User: "bob", Pass: "b"}.AsSha256Mechanism()' in go
