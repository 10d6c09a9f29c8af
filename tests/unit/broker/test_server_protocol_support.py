"""docs/protocol-support.md is the registry, printed: `--rewrite` prints it again."""

import textwrap
from pathlib import Path

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.wire.codec.messages import APIS, UNUSED_APIS

PAGE = Path(__file__).parents[3] / "docs/protocol-support.md"
HEAD = """# Supported APIs of Kafka

Printed from `quorumlog/broker/handlers/registry.py`. A broker advertises exactly these in
ApiVersions, with the [features](decisions/0009-feature-levels.md) that are in force; a
request of any other API or version closes its connection, as in Kafka. The oldest versions are
those of Kafka 4 (KIP-896).
"""
NOTES = """
Produce is advertised from version 0 on but answered from version 3 on, as in Kafka: librdkafka
switches compression off when a broker does not advertise the old versions (KAFKA-18659).
ApiVersions of an unknown version is answered in version 0 with UNSUPPORTED_VERSION and this table
(KIP-511). Telemetry (71, 72) is not advertised, so clients send none.

Clients send AddPartitionsToTxn up to version 3; later ones, and WriteTxnMarkers, are between
brokers. ConsumerGroupHeartbeat and ConsumerGroupDescribe are refused with UNSUPPORTED_VERSION while
`group.version` is 0, ShareGroupHeartbeat always: there are no share groups
([decision 9](decisions/0009-feature-levels.md)).

## Unsupported APIs

Brokers of Apache Kafka 4 answer these as well; here a request of one of them closes its connection:

"""
BETWEEN_SERVERS = {  # of KRaft, by listeners of controllers only: here by the control listener
    *(52, 53, 54, 56, 59),  # Vote, Begin- and EndQuorumEpoch, AlterPartition, FetchSnapshot
    *(58, 62, 63, 67, 70, 73, 82),  # Envelope, registrations, AllocateProducerIds, ...
}


def page() -> str:
    rows = ["| key | API | versions |", "|---|---|---|"]
    for key, handler in sorted(HANDLERS.items()):
        answered = f"{handler.min_version}-{handler.max_version}"
        if handler.advertised_min_version != handler.min_version:
            answered += f" (advertised from {handler.advertised_min_version})"
        rows.append(f"| {key} | {APIS[key].name} | {answered} |")
    names = {key: api.name for key, api in APIS.items()} | UNUSED_APIS
    absent = [
        f"{name} ({key})"
        for key, name in sorted(names.items())
        if key not in HANDLERS and key not in BETWEEN_SERVERS
    ]
    listed = textwrap.fill(", ".join(absent) + ".", 100, break_long_words=False)
    return "\n".join([HEAD, *rows, NOTES]) + listed + "\n"


def test_the_page_says_what_is_registered(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


def test_every_registered_version_has_messages() -> None:
    for key, handler in HANDLERS.items():
        versions = range(handler.min_version, handler.max_version + 1)
        assert {*versions} <= {*APIS[key].versions}
