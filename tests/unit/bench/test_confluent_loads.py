"""Loads of confluent-kafka: an error of the library is one of ours."""

import pytest

from quorumlog.bench.confluent import run_confluent
from quorumlog.bench.load import ProduceLoad
from quorumlog.client import ErrorCode, KafkaError

pytest.importorskip("confluent_kafka")
LOAD = ProduceLoad(topic="t", messages=5, size=8)


def test_certificates_that_cannot_be_read_are_an_error_of_the_load() -> None:
    client = {"bootstrap_servers": "127.0.0.1:1", "security_protocol": "SSL", "ssl_ca": "none.pem"}
    with pytest.raises(KafkaError, match=r"librdkafka: .*ssl\.ca\.location failed") as error:
        run_confluent(client, LOAD, lambda _: None)
    assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_protection_that_cannot_hold_is_refused() -> None:
    client = {"bootstrap_servers": "127.0.0.1:1", "sasl_username": "alice"}
    with pytest.raises(ValueError, match="sasl_username needs security_protocol"):
        run_confluent(client, LOAD, lambda _: None)
