"""The kinds of requests that a rule on links may name, and on which listener each is sent.

Kafka's names of the APIs that have messages here, and the names of the control plane's requests. A
name that both have means Kafka's; `control/Fetch` is the other one.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple

from quorumlog.wire.codec import messages

CONTROL: Final = (
    "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "FetchSnapshot", "Fetch", "RegisterBroker",
    "BrokerHeartbeat", "CreateTopics", "FindTopics", "DeleteTopics", "CreatePartitions",
    "AlterConfigs", "AlterGroupConfigs", "ElectLeaders", "AlterPartitionReassignments",
    "AlterPartition", "AssignReplicasToDirs", "ReportLogs", "DescribeQuorum", "UnregisterBroker",
    "UpdateFeatures", "AddVoter", "RemoveVoter", "UpdateVoter", "UpgradeKRaftVersion",
    "AllocateProducerIds", "CreateAcls", "DeleteAcls", "AlterClientQuotas",
    "AlterUserScramCredentials", "AlterClientMetrics",
)  # fmt: skip
_PREFIX: Final = "control/"


class Api(NamedTuple):
    """A kind of request: the plane on which it is sent, and its name there."""

    plane: Literal["kafka", "control"]
    name: str


APIS: Final[Mapping[str, Api]] = {
    **{_PREFIX + name: Api("control", name) for name in CONTROL},
    **{name: Api("control", name) for name in CONTROL},
    **{name: Api("kafka", name) for _, name, _ in messages.APIS.values()},
}


def find_api(name: str) -> Api:
    """Return the request of this name. Raises ValueError."""
    if name not in APIS:
        hint = "".join(f"; did you mean {like}?" for like in get_close_matches(name, APIS, n=1))
        raise ValueError(f"no request is called {name!r}{hint}")
    return APIS[name]


def kafka_api_name(key: int) -> str:
    """Return the name of an API key; its number, if no rule can name it."""
    return messages.APIS[key].name if key in messages.APIS else str(key)
