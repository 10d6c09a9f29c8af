"""The kinds of requests that a rule on links may name, and on which listener each is sent.

Kafka's names of the APIs that brokers serve here to clients and followers, by key, and the names of
the control plane's requests. A name that both have means Kafka's; `control/Fetch` is the other one.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple

_KAFKA: Final[Mapping[int, str]] = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    27: "WriteTxnMarkers",
    28: "TxnOffsetCommit",
    29: "DescribeAcls",
    30: "CreateAcls",
    31: "DeleteAcls",
    32: "DescribeConfigs",
    33: "AlterConfigs",
    34: "AlterReplicaLogDirs",
    35: "DescribeLogDirs",
    37: "CreatePartitions",
    42: "DeleteGroups",
    43: "ElectLeaders",
    44: "IncrementalAlterConfigs",
    45: "AlterPartitionReassignments",
    46: "ListPartitionReassignments",
    47: "OffsetDelete",
    48: "DescribeClientQuotas",
    49: "AlterClientQuotas",
    50: "DescribeUserScramCredentials",
    51: "AlterUserScramCredentials",
    55: "DescribeQuorum",
    57: "UpdateFeatures",
    60: "DescribeCluster",
    61: "DescribeProducers",
    64: "UnregisterBroker",
    65: "DescribeTransactions",
    66: "ListTransactions",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    74: "ListConfigResources",
    75: "DescribeTopicPartitions",
    76: "ShareGroupHeartbeat",
    80: "AddRaftVoter",
    81: "RemoveRaftVoter",
}
CONTROL: Final = (
    "Vote",
    "BeginQuorumEpoch",
    "EndQuorumEpoch",
    "FetchSnapshot",
    "Fetch",
    "RegisterBroker",
    "BrokerHeartbeat",
    "CreateTopics",
    "FindTopics",
    "DeleteTopics",
    "CreatePartitions",
    "AlterConfigs",
    "AlterGroupConfigs",
    "ElectLeaders",
    "AlterPartitionReassignments",
    "AlterPartition",
    "AssignReplicasToDirs",
    "ReportLogs",
    "DescribeQuorum",
    "UnregisterBroker",
    "UpdateFeatures",
    "AddVoter",
    "RemoveVoter",
    "UpdateVoter",
    "UpgradeKRaftVersion",
    "AllocateProducerIds",
    "CreateAcls",
    "DeleteAcls",
    "AlterClientQuotas",
    "AlterUserScramCredentials",
)
_PREFIX: Final = "control/"


class Api(NamedTuple):
    """A kind of request: the plane on which it is sent, and its name there."""

    plane: Literal["kafka", "control"]
    name: str


APIS: Final[Mapping[str, Api]] = {
    **{_PREFIX + name: Api("control", name) for name in CONTROL},
    **{name: Api("control", name) for name in CONTROL},
    **{name: Api("kafka", name) for name in _KAFKA.values()},
}


def find_api(name: str) -> Api:
    """Return the request of this name. Raises ValueError."""
    if name not in APIS:
        hint = "".join(f"; did you mean {like}?" for like in get_close_matches(name, APIS, n=1))
        raise ValueError(f"no request is called {name!r}{hint}")
    return APIS[name]


def kafka_api_name(key: int) -> str:
    """Return the name of an API key; its number, if no rule can name it."""
    return _KAFKA.get(key, str(key))
