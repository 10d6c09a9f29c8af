"""Settings of clients that contradict each other, or the limits of a cluster's brokers."""

from pathlib import Path

import pytest

from quorumlog.doctor.client_settings import ClusterFacts, check, read_properties

CLUSTER = ClusterFacts(
    brokers=3,
    configs={
        "message.max.bytes": "1048588",
        "transaction.max.timeout.ms": "900000",
        "group.min.session.timeout.ms": "6000",
        "group.max.session.timeout.ms": "1800000",
    },
    api_keys=frozenset({0, 1, 3, 22, 68}),
    is_plain=True,
)


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "acks=1",  # idempotence was not required
        "acks=all enable.idempotence=true max.in.flight.requests.per.connection=5 retries=3",
        "acks=-1 transactional.id=t transaction.timeout.ms=900000",
        "session.timeout.ms=6000 heartbeat.interval.ms=2000 max.poll.interval.ms=6000",
        "delivery.timeout.ms=30005 request.timeout.ms=30000 linger.ms=5",
        "request.timeout.ms=500000",  # the default of delivery.timeout.ms grows with it
        "group.protocol=consumer max.poll.interval.ms=1000",
        "replication.factor=3 isolation.level=read_committed auto.offset.reset=smallest",
        "replication.factor=-1 max.request.size=1048588 compression.type=zstd",
        "security.protocol=plaintext",
    ],
)
def test_settings_that_work_have_no_finding(settings: str) -> None:
    assert check(dict(one.split("=") for one in settings.split()), CLUSTER) == []


@pytest.mark.parametrize(
    ("settings", "subject", "why"),
    [
        ("acks=1 enable.idempotence=true", "acks", "enable.idempotence=true requires acks=all"),
        ("request.required.acks=0 transactional.id=t", "acks", "transactional.id requires acks"),
        ("acks=2", "acks", "no client accepts this value"),
        (
            "enable.idempotence=false transactional.id=t",
            "enable.idempotence",
            "a transactional producer is idempotent",
        ),
        ("enable.idempotence=true retries=0", "retries", "requires retries"),
        (
            "enable.idempotence=true max.in.flight=6",
            "max.in.flight.requests.per.connection",
            "allows at most 5",
        ),
        ("max.request.size=1048589", "max.request.size", "message.max.bytes=1048588"),
        ("message.max.bytes=2000000", "max.request.size", "MESSAGE_TOO_LARGE"),
        ("transaction.timeout.ms=900001", "transaction.timeout.ms", "INVALID_TRANSACTION_TIMEOUT"),
        ("delivery.timeout.ms=30004", "delivery.timeout.ms", "request.timeout.ms=30000 at least"),
        ("session.timeout.ms=5999", "session.timeout.ms", "the brokers accept 6000 to 1800000"),
        ("session.timeout.ms=1800001", "session.timeout.ms", "INVALID_SESSION_TIMEOUT"),
        ("heartbeat.interval.ms=45000", "heartbeat.interval.ms", "less than session.timeout.ms"),
        (
            "session.timeout.ms=9000 max.poll.interval.ms=8999",
            "max.poll.interval.ms",
            "librdkafka requires session.timeout.ms=9000",
        ),
        (
            "group.protocol=consumer session.timeout.ms=9000",
            "session.timeout.ms",
            "leaves it to the brokers",
        ),
        ("fetch.max.wait.ms=30000", "fetch.max.wait.ms", "request.timeout.ms=30000"),
        ("replication.factor=4", "replication.factor", "has 3 brokers"),
        (
            "offset.storage.replication.factor=5",
            "offset.storage.replication.factor",
            "INVALID_REPLICATION_FACTOR",
        ),
        ("isolation.level=read_commited", "isolation.level", "no client accepts this value"),
        ("linger.ms=5s", "linger.ms", "not a whole number"),
        ("security.protocol=SSL", "security.protocol", "the port speaks plain Kafka"),
        ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism", "GSSAPI"),
    ],
)
def test_each_fault_has_one_finding(settings: str, subject: str, why: str) -> None:
    found = check(dict(one.split("=") for one in settings.split()), CLUSTER)
    [finding] = found
    assert (finding.name, finding.subject) == ("client-setting", subject)
    assert why in finding.why
    assert finding.remedy


def test_a_value_that_is_nearly_right_is_suggested() -> None:
    [finding] = check({"isolation.level": "read_commited"}, CLUSTER)
    assert finding.remedy.endswith("did you mean read_committed?")


def test_limits_that_cannot_be_read_judge_nothing() -> None:
    settings = {"session.timeout.ms": "10000000", "max.request.size": "999999999"}
    assert check(settings, ClusterFacts()) == []
    protocol = check({"group.protocol": "consumer"}, ClusterFacts(api_keys=frozenset({0})))
    assert [one.subject for one in protocol] == ["group.protocol"]


def test_a_file_of_java_properties_is_read(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "# a comment\n! another\n\nacks=all\nlinger.ms : 5\nclient.id test one\n"
        "bootstrap.servers = a:1,\\\n   b:2\nssl.truststore.password=\n"
    )
    assert read_properties(path) == {
        "acks": "all",
        "linger.ms": "5",
        "client.id": "test one",
        "bootstrap.servers": "a:1,   b:2",
        "ssl.truststore.password": "",
    }
