"""Clusters of real processes with TLS, SASL and ACLs: each client reaches them by its settings."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

from quorumlog.chaos.back_ends.run_resources import Equipment, started
from quorumlog.client import Acl, KafkaError, NewTopic, TopicPartition
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from quorumlog.cluster import LocalCluster, client_configs, security
from quorumlog.cluster.errors import InvalidArgument

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("secured_cluster")]
ADMIN, ALICE, EVE = "admin", "alice", "eve"
PASSWORDS = {ADMIN: "pw-of-the-admin", ALICE: 'pw "of" alice\\', EVE: "pw-of-eve"}
TOPIC = "orders"
ALLOWED: list[tuple[Any, str, Any]] = [
    ("topic", TOPIC, "write"),
    ("topic", TOPIC, "read"),
    ("group", "billing", "read"),
]
DENIED = "TOPIC_AUTHORIZATION_FAILED"
KAFKA_LIBRARIES = os.environ.get("KAFKA_LIBRARIES", "")  # the directory of Apache Kafka's jars
HAS_JAVA = bool(shutil.which("java") and KAFKA_LIBRARIES)
QUORUMLOG = (sys.executable, "-m", "quorumlog")
Send = Callable[[LocalCluster, str], str]
"""Sends a record as a user; returns "" or the name of the error."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with everything. Alice may write and read the topic, Eve nothing."""
    directory = tmp_path_factory.mktemp("secured") / "cluster"
    with LocalCluster(
        directory, tls=True, sasl="scram-sha-512", users=PASSWORDS, acls=True, super_users=[ADMIN]
    ) as cluster:
        with SyncAdmin(**cluster.client_config(ADMIN)) as admin:
            admin.create_topics([NewTopic(TOPIC, 3, 3)])
            admin.create_acls(
                [
                    Acl(
                        resource_type=kind,
                        resource_name=name,
                        principal=f"User:{ALICE}",
                        operation=operation,
                    )
                    for kind, name, operation in ALLOWED
                ]
            )
        yield cluster


def _ours(cluster: LocalCluster, user: str) -> str:
    with SyncProducer(**cluster.client_config(user)) as producer:
        try:
            producer.send(TOPIC, b"ours").result()
        except KafkaError as error:
            return error.code.name
    return ""


def _confluent(cluster: LocalCluster, user: str) -> str:
    errors: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(cluster.client_config(user, "confluent"))
    producer.produce(TOPIC, b"confluent", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors[0].name() if errors[0] is not None else ""


def _kafka_python(cluster: LocalCluster, user: str) -> str:
    producer = kafka.KafkaProducer(**cluster.client_config(user, "kafka-python"))
    try:
        producer.send(TOPIC, b"kafka-python").get(30)
    except kafka.errors.TopicAuthorizationFailedError:
        return DENIED
    finally:
        producer.close()
    return ""


def _aiokafka(cluster: LocalCluster, user: str) -> str:
    async def send() -> str:
        producer = aiokafka.AIOKafkaProducer(**cluster.client_config(user, "aiokafka"))
        await producer.start()
        try:
            await producer.send_and_wait(TOPIC, b"aiokafka")
        except aiokafka.errors.TopicAuthorizationFailedError:
            return DENIED
        finally:
            await producer.stop()
        return ""

    return asyncio.run(send())


def _java(cluster: LocalCluster, user: str) -> str:
    urls = ",".join(client_configs.access(cluster.directory, cluster.spec, user).token_urls)
    file = cluster.directory / f"{user}.properties"
    way = client_configs.access(cluster.directory, cluster.spec, user)
    file.write_text(client_configs.config_text(way, "java"))
    tool = "org.apache.kafka.tools.ConsoleProducer"
    words = ("--bootstrap-server", cluster.bootstrap, "--topic", TOPIC)
    done = subprocess.run(
        [
            "java",
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}",
            "-cp",
            f"{KAFKA_LIBRARIES}/*",
            tool,
            *words,
            "--command-config",
            str(file),
        ],
        input="java\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    file.unlink()
    output = done.stdout + done.stderr
    return (
        DENIED
        if "TopicAuthorizationException" in output
        else ""
        if "ERROR" not in output
        else output
    )


SENDS = {
    "ours": _ours,
    "confluent": _confluent,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "java": _java,
}


@pytest.mark.parametrize("library", SENDS)
def test_each_client_sends_by_its_settings_what_acls_allow(
    cluster: LocalCluster, library: str
) -> None:
    if library == "java" and not HAS_JAVA:
        pytest.skip("no Java, or no jars of Apache Kafka in $KAFKA_LIBRARIES")
    send = SENDS[library]
    assert send(cluster, ALICE) == ""
    assert send(cluster, EVE) == DENIED
    with SyncConsumer(
        **cluster.client_config(ALICE), group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([TOPIC])
        values: set[bytes | None] = set()
        while library.encode() not in values:
            polled = consumer.poll(5_000)
            values |= {one.value for records in polled.values() for one in records}


@pytest.mark.parametrize("style", ["confluent", "quorumlog"])
def test_a_wrong_password_is_refused_at_once(cluster: LocalCluster, style: str) -> None:
    settings = cluster.client_config(ALICE, style)
    if style == "quorumlog":
        with pytest.raises(KafkaError, match="Authentication"):
            SyncAdmin(**{**settings, "sasl_password": "wrong"}).__enter__()
        return
    errors: list[int] = []
    options: dict[str, Any] = {"error_cb": lambda error: errors.append(error.code())}
    admin = AdminClient({**settings, "sasl.password": "wrong", **options})
    with pytest.raises(confluent_kafka.KafkaException):
        admin.list_topics(timeout=2)
    admin.poll(1)  # calls error_cb
    assert confluent_kafka.KafkaError._AUTHENTICATION in errors


def test_kafkajs_reaches_the_cluster(cluster: LocalCluster) -> None:
    directory = Path(__file__).parents[2] / "examples/node_test"
    if shutil.which("node") is None or not (directory / "node_modules/kafkajs").exists():
        pytest.skip("no Node.js, or examples/node_test has no node_modules: see its README")
    way = client_configs.access(cluster.directory, cluster.spec, ALICE)
    settings = client_configs.config_text(way, "kafkajs")
    program = f"""
        const fs = require('fs'); const {{ Kafka, logLevel }} = require('kafkajs');
        const kafka = new Kafka(Object.assign({{ logLevel: logLevel.NOTHING }}, {settings}));
        const producer = kafka.producer();
        producer.connect()
          .then(() => producer.send({{ topic: '{TOPIC}', messages: [{{ value: 'js' }}] }}))
          .then(() => producer.disconnect()).then(() => console.log('sent'));
    """
    done = subprocess.run(
        ["node", "-e", program],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "sent\n", done.stderr


def test_users_with_certificates_are_principals_of_acls(tmp_path: Path) -> None:
    users = {ADMIN: None, EVE: None}
    with LocalCluster(tmp_path, nodes=1, tls=True, users=users, acls=True) as cluster:
        with SyncAdmin(**cluster.client_config(ADMIN)) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1)])
        assert [_confluent(cluster, user) for user in (ADMIN, EVE)] == ["", DENIED]
        assert [_kafka_python(cluster, user) for user in (ADMIN, EVE)] == ["", DENIED]
        assert [_ours(cluster, user) for user in (ADMIN, EVE)] == ["", DENIED]


@pytest.mark.skipif(sys.platform != "linux", reason="nodes are forked on Linux only")
def test_nodes_with_tls_of_all_clusters_are_forked_from_one_kept_process(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with LocalCluster(tmp_path / "1", nodes=1, tls=True) as other:
        parents = {_parent(one.pid(node.id)) for one in (cluster, other) for node in one.nodes}
        other.kill(1)
        other.start()
        assert {_parent(other.pid(1))} == parents
    with LocalCluster(tmp_path / "2", nodes=1) as plain:  # its process has no `ssl`
        assert not {_parent(plain.pid(1))} & parents


def _parent(pid: int | None) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


@pytest.mark.parametrize(
    ("mechanism", "password", "tls"),
    [
        ("plain", PASSWORDS[ALICE], False),
        ("scram-sha-256", PASSWORDS[ALICE], False),
        ("oauthbearer", PASSWORDS[ALICE], False),  # signed tokens
        ("oauthbearer", PASSWORDS[ALICE], True),  # from an issuer with https
        ("oauthbearer", None, False),
    ],
)
def test_each_mechanism_serves_each_client(
    tmp_path: Path, mechanism: str, password: str | None, tls: bool
) -> None:
    users = {ALICE: password}
    with LocalCluster(tmp_path, nodes=1, tls=tls, sasl=mechanism, users=users) as cluster:
        with SyncAdmin(**cluster.client_config(ALICE)) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1)])
        sends = [_ours, _confluent, _kafka_python, _aiokafka]
        if HAS_JAVA:
            sends.append(_java)
        for send in sends:
            assert send(cluster, ALICE) == ""


def test_an_existing_cluster_keeps_its_users_and_takes_another(tmp_path: Path) -> None:
    options: Any = {"nodes": 1, "sasl": "scram-sha-256"}
    with (
        LocalCluster(tmp_path, **options, users={ALICE: "one"}) as cluster,
        SyncAdmin(**cluster.client_config(ALICE)) as admin,
    ):
        admin.create_topics([NewTopic(TOPIC, 1, 1)])
    with LocalCluster(tmp_path, users={EVE: "two"}) as cluster:
        assert [_ours(cluster, user) for user in (ALICE, EVE)] == ["", ""]
    with LocalCluster(tmp_path, users={ALICE: "three"}) as cluster:  # another password
        assert _ours(cluster, ALICE) == ""
        assert cluster.client_config(ALICE)["sasl_password"] == "three"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_poll_raises_what_its_user_may_not_read(cluster: LocalCluster, protocol: Any) -> None:
    with SyncAdmin(**cluster.client_config(ADMIN)) as admin:
        whole: dict[str, Any] = {"principal": f"User:{EVE}", "operation": "read"}
        admin.create_acls([Acl(resource_type="group", resource_name="evil", **whole)])
    settings = cluster.client_config(EVE)
    with SyncConsumer(group_id="evil", group_protocol=protocol, **settings) as consumer:
        consumer.subscribe([TOPIC])
        for _ in range(2):  # again with the next response
            with pytest.raises(KafkaError, match=f"{DENIED}: the user may lack READ on topic"):
                consumer.poll(20_000)
    with SyncConsumer(group_id="other", group_protocol=protocol, **settings) as consumer:
        consumer.subscribe([TOPIC])
        lacks: set[str] = set()
        while not any("group other" in one for one in lacks):  # the topic may be refused first
            with pytest.raises(KafkaError, match="the user may lack READ on") as error:
                consumer.poll(20_000)
            lacks.add(str(error.value))
    with SyncConsumer(**settings) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        with pytest.raises(KafkaError, match=f"{DENIED}: the user may lack READ on topic"):
            consumer.poll(20_000)
    with SyncConsumer(group_id="evil", group_protocol="consumer", **settings) as consumer:
        consumer.subscribe(pattern=".*")  # hides
        assert consumer.poll(1_500) == {}


def test_a_password_set_by_the_owner_of_the_directory_is_that_of_client_config(
    tmp_path: Path,
) -> None:
    directory, file = tmp_path / "cluster", tmp_path / "password"
    users = {ALICE: "one"}
    with LocalCluster(
        directory, nodes=1, sasl="scram-sha-512", users=users, acls=True, super_users=[ALICE, EVE]
    ) as cluster:
        for user in (ALICE, EVE):  # one that the cluster has, and another
            file.write_text(f"new of {user}")
            done = _run(*QUORUMLOG, *_users("set", directory, user), "--password-file", str(file))
            assert done == f"set SCRAM-SHA-512 of {user}\n"  # the cluster's mechanism
            assert cluster.client_config(user)["sasl_password"] == f"new of {user}"
            assert _ours(cluster, user) == ""
        file.write_text("unused")
        other = ("--mechanism", "SCRAM-SHA-256", "--password-file", str(file))
        assert "no listener" in _run(*QUORUMLOG, *_users("set", directory, EVE), *other)
        assert _ours(cluster, EVE) == ""
        _run(*QUORUMLOG, *_users("delete", directory, EVE))
        with pytest.raises(InvalidArgument, match="has no user eve"):
            cluster.client_config(EVE)


def _users(verb: str, directory: Path, user: str) -> list[str]:
    return ["users", verb, user, "--dir", str(directory)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--acls"], "every client is User:ANONYMOUS"),
        (["--sasl", "plain", "--user", "a=b", "--acls"], "`quorumlog up --user admin=PASSWORD`"),
    ],
)
def test_up_names_super_users_without_a_login(
    tmp_path: Path, options: list[str], line: str
) -> None:
    place = ["--dir", str(tmp_path / "cluster")]
    try:
        assert line in _run(*QUORUMLOG, "up", "--one", "--port", "0", "--detach", *place, *options)
    finally:
        _run(*QUORUMLOG, "down", *place)


def test_the_owner_of_the_directory_waits_seeds_and_resets(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    seed = {"topics": [{"name": "seeded", "partitions": 1, "records": [{"value": "x"}]}]}
    users = {ALICE: PASSWORDS[ALICE]}
    with LocalCluster(tmp_path, sasl="scram-sha-256", users=users, acls=True, seed=seed) as cluster:
        assert cluster.seeded is not None
        cluster.wait(topic="seeded", isr=3, leader="any")
        cluster.settled()
        cluster.reset()
        with SyncAdmin(**cluster.own_client()) as admin:
            assert admin.list_topics() == []
            assert set(admin.describe_user_scram_credentials()) == {ALICE}  # it is the cluster's


@pytest.mark.parametrize("tls", [False, True])
def test_clients_and_brokers_go_through_forwarders(tmp_path: Path, tls: bool) -> None:
    cluster = LocalCluster(tmp_path, tls=tls, sasl="scram-sha-256", users={ADMIN: None}, acls=True)
    with started(cluster, Equipment(links=True)) as back_end:
        with SyncAdmin(**cluster.client_config()) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 3)])
        cluster.wait(topic=TOPIC, isr=3, leader="any")
        forwarded = {*cluster.bootstrap.split(",")}
        assert not forwarded & {node.kafka for node in cluster.nodes}
        assert _confluent(cluster, ADMIN) == ""
        leader = cluster.status()["topics"][TOPIC]["partitions"][0]["leader"]
        asyncio.run(back_end.perform("kill", [leader]))
        assert _ours(cluster, ADMIN) == ""


def test_no_secret_is_in_a_public_file_in_an_output_or_in_an_argument(tmp_path: Path) -> None:
    directory, file = tmp_path / "cluster", tmp_path / "users"
    file.write_text("".join(f"{user}={password}\n" for user, password in PASSWORDS.items()))
    up = [*QUORUMLOG, "up", "--one", "--port", "0", "--dir", str(directory)]
    up += ["--tls", "--sasl", "plain", "--users", str(file), "--acls", "--super-user", ADMIN]
    outputs = [_run(*up, "--detach")]
    try:
        arguments = [
            entry.read_bytes() for entry in Path("/proc").glob("[0-9]*/cmdline") if _is_ours(entry)
        ]
        described = LocalCluster.open(directory)
        with SyncAdmin(**described.client_config(ADMIN)) as admin:
            configs = admin.describe_configs("broker", "1")
        outputs += [_run(*up, "--detach", "--json"), str(configs)]
        commands = [["status"], ["status", "--json"], ["topics", "list"], ["users", "describe"]]
        outputs += [_run(*QUORUMLOG, *one, "--dir", str(directory)) for one in commands]
        outputs.append(_run(*QUORUMLOG, "dump-log", f"{directory}/node-1/data", "--values"))
    finally:
        _run(*QUORUMLOG, "down", "--dir", str(directory))
    secrets = [*PASSWORDS.values(), security.passwords(directory).broker]
    for secret in secrets:
        assert not [text for text in outputs if secret in text or json.dumps(secret) in text]
        assert not [line for line in arguments if secret.encode() in line]
    holders = {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and any(one.encode() in path.read_bytes() for one in secrets)
    }
    assert holders == {"security/passwords.json", "node-1/node.properties"}
    assert all((directory / one).stat().st_mode & 0o077 == 0 for one in holders)


def test_a_chaos_run_breaks_a_secured_cluster_of_its_own(tmp_path: Path) -> None:
    out, file, output = tmp_path / "run", tmp_path / "password", tmp_path / "output"
    secret = b"pw-of-the-run"
    file.write_bytes(secret + b"\n")
    words = f"chaos run --tls --sasl oauthbearer --acls --super-user root --user root=@{file}"
    words += f" --user {EVE}=@{file} --driver aiokafka --fault isolate_role --duration 6s"
    words += f" --acks-in-faults 1 --out {out} --json"
    told = set()
    with (
        output.open("w") as log,
        subprocess.Popen([*QUORUMLOG, *words.split()], stdout=log, stderr=log) as process,
    ):
        while process.poll() is None:
            lines = [_read(entry) for entry in Path("/proc").glob("[0-9]*/cmdline")]
            told |= {line for line in lines if secret in line}
            time.sleep(0.2)
    written = output.read_text()
    verdict = json.loads((out / "verdict.json").read_text())
    meta = json.loads((out / "meta.json").read_text())
    assert verdict["valid"] is not False, written  # unknown: the machine was too slow
    assert meta["load"]["acknowledged"], written
    assert meta["faults_carried_out"], written
    protection = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "user": None, "acls": True}
    assert meta["security"] == protection
    assert f"--user root=@{file} --user eve=@{file}" in meta["command"]  # it can be repeated
    assert not told
    holders = {
        path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*")
        if path.is_file() and secret in path.read_bytes()
    }
    assert holders == {"password", "run/cluster/security/passwords.json"}


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""


def _is_ours(entry: Path) -> bool:
    return b"quorumlog" in _read(entry)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr
