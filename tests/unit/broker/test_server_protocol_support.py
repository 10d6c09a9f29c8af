"""Pages and contracts name what there is: effects and events of cores, supported APIs."""

from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from quorumlog.broker.coordination import core as coordination
from quorumlog.broker.coordination.core import effects as shard_effects
from quorumlog.broker.coordination.core import events as shard_events
from quorumlog.broker.groups import core as groups
from quorumlog.broker.groups.core import consumer as consumer_groups
from quorumlog.broker.groups.core import effects as group_effects
from quorumlog.broker.groups.core import events as group_events
from quorumlog.broker.groups.core.consumer import effects as consumer_group_effects
from quorumlog.broker.groups.core.consumer import events as consumer_group_events
from quorumlog.broker.handlers.optional import telemetry
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions import core as partitions
from quorumlog.broker.partitions.core import effects as partition_effects
from quorumlog.broker.partitions.core import events as partition_events
from quorumlog.broker.transactions import core as transactions
from quorumlog.broker.transactions.core import effects as transaction_effects
from quorumlog.broker.transactions.core import events as transaction_events
from quorumlog.wire.codec.messages import APIS, UNUSED_APIS


@pytest.mark.parametrize(
    ("core", "effects", "events"),
    [
        (partitions, partition_effects, partition_events),
        (coordination, shard_effects, shard_events),
        (groups, group_effects, group_events),
        (transactions, transaction_effects, transaction_events),
        (consumer_groups, consumer_group_effects, consumer_group_events),
    ],
)
def test_a_contract_names_every_effect_and_every_event(
    core: ModuleType, effects: ModuleType, events: ModuleType
) -> None:
    kinds = {kind.__name__ for kind in (*get_args(effects.Effect), *get_args(events.Event))}
    assert kinds
    assert {kind for kind in kinds if f"`{kind}`" not in (core.__doc__ or "")} == set()


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
(KIP-511). GetTelemetrySubscriptions (71) and PushTelemetry (72), both version 0, are advertised
with `client.telemetry` only ([metrics of clients](metrics.md#metrics-of-clients)).

`quorumlog up --as-version 3.9` lowers the highest versions to those of that release of Apache
Kafka, and drops the APIs and features that it lacks: 2.8, and 3.0 to 4.3. The lowest versions stay
as above ([decision 9](decisions/0009-feature-levels.md)).

Clients send AddPartitionsToTxn up to version 3; later ones, and WriteTxnMarkers, are between
brokers. ConsumerGroupHeartbeat and ConsumerGroupDescribe are refused with UNSUPPORTED_VERSION while
`group.version` is 0 ([decision 9](decisions/0009-feature-levels.md)).

There are no share groups and no streams groups: their requests (76 to 79, 88 to 92) are refused
with UNSUPPORTED_VERSION, and those to a share coordinator (83 to 87) with NOT_COORDINATOR, as by
Kafka while `share.version` and `streams.version` are 0. Requests for delegation tokens (38 to 41)
are refused as by Kafka without a secret key.

Brokers of Apache Kafka 4.3 answer no other APIs.
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
    return "\n".join([HEAD, *rows, NOTES])


def test_the_page_says_what_is_registered(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


def test_every_api_of_kafkas_brokers_is_answered() -> None:
    assert (
        HANDLERS.keys() | telemetry.HANDLERS.keys() == (APIS | UNUSED_APIS).keys() - BETWEEN_SERVERS
    )


def test_every_registered_version_has_messages() -> None:
    for key, handler in HANDLERS.items():
        versions = range(handler.min_version, handler.max_version + 1)
        assert {*versions} <= {*APIS[key].versions}
