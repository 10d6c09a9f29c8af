"""The protocol of releases of Apache Kafka: the highest version of each API, and the features.

Source: `validVersions` and `latestVersionUnstable` of the messages at each release's tag
(clients/src/main/resources/common/message), and the features at these tags (`MetadataVersion.java`,
`Feature.java`). An API that only brokers with KRaft answer counts from its first stable release on.
A patch release has the versions of its minor release.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

K = TypeVar("K")

RELEASES: Final = (
    *("2.8", "3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9"),
    *("4.0", "4.1", "4.2", "4.3"),
)
NEWEST: Final = "newest"
"""In place of a release: all versions that this broker has."""

_API_VERSIONS: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",  # Produce
        1: "2.8:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18",  # Fetch
        2: "2.8:6 3.0:7 3.5:8 3.9:9 4.0:10 4.2:11",  # ListOffsets
        3: "2.8:11 3.1:12 4.0:13",  # Metadata
        8: "2.8:8 3.7:9 4.2:10",  # OffsetCommit
        9: "2.8:7 3.0:8 3.7:9 4.2:10",  # OffsetFetch
        10: "2.8:3 3.0:4 3.8:5 3.9:6",  # FindCoordinator
        11: "2.8:7 3.2:9",  # JoinGroup
        12: "2.8:4",  # Heartbeat
        13: "2.8:4 3.2:5",  # LeaveGroup
        14: "2.8:5",  # SyncGroup
        15: "2.8:5 4.0:6",  # DescribeGroups
        16: "2.8:4 3.8:5",  # ListGroups
        17: "2.8:1",  # SaslHandshake
        18: "2.8:3 3.9:4",  # ApiVersions
        19: "2.8:7",  # CreateTopics
        20: "2.8:6",  # DeleteTopics
        21: "2.8:2",  # DeleteRecords
        22: "2.8:4 3.8:5",  # InitProducerId
        23: "2.8:4",  # OffsetForLeaderEpoch
        24: "2.8:3 3.6:4 3.8:5",  # AddPartitionsToTxn
        25: "2.8:3 3.8:4",  # AddOffsetsToTxn
        26: "2.8:3 3.8:4 4.0:5",  # EndTxn
        27: "2.8:1 4.2:2",  # WriteTxnMarkers
        28: "2.8:3 3.8:4 4.0:5",  # TxnOffsetCommit
        29: "2.8:2 3.3:3",  # DescribeAcls
        30: "2.8:2 3.3:3",  # CreateAcls
        31: "2.8:2 3.3:3",  # DeleteAcls
        32: "2.8:4",  # DescribeConfigs
        33: "2.8:2",  # AlterConfigs
        34: "2.8:2",  # AlterReplicaLogDirs
        35: "2.8:2 3.2:3 3.3:4 4.3:5",  # DescribeLogDirs
        36: "2.8:2",  # SaslAuthenticate
        37: "2.8:3",  # CreatePartitions
        38: "2.8:2 3.3:3",  # CreateDelegationToken
        39: "2.8:2",  # RenewDelegationToken
        40: "2.8:2",  # ExpireDelegationToken
        41: "2.8:2 3.3:3",  # DescribeDelegationToken
        42: "2.8:2",  # DeleteGroups
        43: "2.8:2",  # ElectLeaders
        44: "2.8:1",  # IncrementalAlterConfigs
        45: "2.8:0 4.1:1",  # AlterPartitionReassignments
        46: "2.8:0",  # ListPartitionReassignments
        47: "2.8:0",  # OffsetDelete
        48: "2.8:1",  # DescribeClientQuotas
        49: "2.8:1",  # AlterClientQuotas
        50: "2.8:0",  # DescribeUserScramCredentials
        51: "2.8:0",  # AlterUserScramCredentials
        55: "3.3:1 3.9:2",  # DescribeQuorum
        57: "2.8:0 3.3:1 4.0:2",  # UpdateFeatures
        60: "2.8:0 3.7:1 4.0:2",  # DescribeCluster
        61: "2.8:0",  # DescribeProducers
        64: "3.3:0",  # UnregisterBroker
        65: "3.0:0",  # DescribeTransactions
        66: "3.0:0 3.8:1 4.1:2",  # ListTransactions
        68: "3.7:0 4.0:1",  # ConsumerGroupHeartbeat
        69: "3.8:0 4.0:1",  # ConsumerGroupDescribe
        71: "3.7:0",  # GetTelemetrySubscriptions
        72: "3.7:0",  # PushTelemetry
        74: "3.7:0 4.1:1",  # ListConfigResources
        75: "3.8:0",  # DescribeTopicPartitions
        76: "4.1:1",  # ShareGroupHeartbeat
        77: "4.1:1",  # ShareGroupDescribe
        78: "4.1:1 4.2:2",  # ShareFetch
        79: "4.1:1 4.2:2",  # ShareAcknowledge
        80: "3.9:0 4.2:1",  # AddRaftVoter
        81: "3.9:0",  # RemoveRaftVoter
        83: "4.1:0",  # InitializeShareGroupState
        84: "4.1:0",  # ReadShareGroupState
        85: "4.1:0 4.2:1",  # WriteShareGroupState
        86: "4.1:0",  # DeleteShareGroupState
        87: "4.1:0 4.2:1",  # ReadShareGroupStateSummary
        88: "4.2:0",  # StreamsGroupHeartbeat
        89: "4.2:0",  # StreamsGroupDescribe
        90: "4.1:0 4.2:1",  # DescribeShareGroupOffsets
        91: "4.1:0",  # AlterShareGroupOffsets
        92: "4.1:0",  # DeleteShareGroupOffsets
    }
)
"""Highest stable version by API key, as `release:version`, from that release on."""

_FEATURE_LEVELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "metadata.version": "3.3:7 3.4:8 3.5:11 3.6:14 3.7:19 3.8:20 3.9:21 4.0:25 4.1:27 4.2:29 "
        "4.3:30",
        "kraft.version": "3.9:1",
        "eligible.leader.replicas.version": "4.0:1",
        "group.version": "4.0:1",
        "transaction.version": "4.0:2",
    }
)
"""Highest production level by feature, in the same form."""


def api_versions(release: str) -> dict[int, int]:
    """Return the highest version of each API in a release, by API key; none of absent APIs."""
    return _at(release, _API_VERSIONS)


def feature_levels(release: str) -> dict[str, int]:
    """Return the highest level of each feature that a release announces (KIP-584)."""
    return _at(release, _FEATURE_LEVELS)


def _at(release: str, table: Mapping[K, str]) -> dict[K, int]:
    index = RELEASES.index(release)
    found: dict[K, int] = {}
    for key, steps in table.items():
        for step in steps.split():
            since, _, number = step.partition(":")
            if RELEASES.index(since) <= index:
                found[key] = int(number)
    return found
