"""Requests that are answered with an error, and requests that are counted.

The forwarder on the way to a broker answers; `error_answers` finds the place of an error.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from quorumlog.chaos.faults.apis import APIS, find_api
from quorumlog.chaos.faults.error_answers import (
    AT_THE_TOP,
    IN_ENTRIES,
    has_error,
    names_partitions,
    names_topics,
)
from quorumlog.chaos.faults.fault import LINK_ROLES, MILLION, Fault, named, ranged
from quorumlog.chaos.faults.links import After, Answer, Effect, Observe
from quorumlog.chaos.faults.requests import RequestFault, Sender
from quorumlog.chaos.registered import registered
from quorumlog.wire.codec import messages
from quorumlog.wire.codec.error_codes import ErrorCode

ERRORS: Final[Mapping[str, ErrorCode]] = {
    error.name: error for error in ErrorCode if error is not ErrorCode.NONE
}
WRITING: Final = frozenset(
    {
        "Produce", "OffsetCommit", "TxnOffsetCommit", "OffsetDelete", "InitProducerId",
        "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "WriteTxnMarkers", "JoinGroup",
        "SyncGroup", "LeaveGroup", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "DeleteGroups",
        "CreateTopics", "DeleteTopics", "DeleteRecords", "CreatePartitions", "AlterConfigs",
        "IncrementalAlterConfigs", "AlterReplicaLogDirs", "CreateAcls", "DeleteAcls",
        "ElectLeaders", "AlterPartitionReassignments", "AlterClientQuotas",
        "AlterUserScramCredentials", "UpdateFeatures", "UnregisterBroker", "AddRaftVoter",
        "RemoveRaftVoter",
    }
)  # fmt: skip
"""The requests that change the state of a cluster: an error may follow the change."""
_KEYS: Final[Mapping[str, int]] = {api.name: key for key, api in messages.APIS.items()}
_COUNT_MAX: Final = 1_000_000_000


def kafka_api(name: str) -> int:
    """Return the key of a Kafka API. Raises ValueError, with all names, for another name."""
    if name in APIS and APIS[name].plane == "control":
        raise ValueError(
            f"{name} is a request of the control plane, which has no error codes of Kafka;"
            f" choose from {', '.join(_KEYS)}"
        )
    return registered(_KEYS, name, "Kafka API")


class OfOneTopic(RequestFault):
    """The requests of the kind `api` that a rule matches.

    topic, partition: that the request names; "" and -1: any. client_id: of the sender; "": any.
    """

    __slots__ = ()
    topic: str
    partition: int
    client_id: str

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        key = kafka_api(self.api)
        if self.partition >= 0 and not self.topic:
            raise ValueError(f"partition {self.partition} without a topic: name the topic, too")
        if self.topic and not names_topics(key):
            known = ", ".join(name for name, one in _KEYS.items() if names_topics(one))
            raise ValueError(
                f"a {self.api} has no error for a single topic: leave the topic out;"
                f" it can be given with {known}"
            )
        if self.partition >= 0 and not names_partitions(key):
            raise ValueError(
                f"a {self.api} has no error for a single partition: leave the partition out"
            )


@named("answer", "requests of one kind are answered with an error", targets=LINK_ROLES)
class AnswerRequests(OfOneTopic):
    """Requests of the kind `api` are answered with `error`.

    after: `refused` requests do not reach the broker; `appended` ones are carried out before the
    error replaces the response. share_ppm: the answered share of the matching requests, in
    millionths. times: at most as many answers; on_call: only that matching request, counted from 1,
    whatever the share; 0: no such limit.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Answer})
    api: str = "Produce"
    error: str = "NOT_LEADER_OR_FOLLOWER"
    after: After = "refused"
    topic: str = ""
    partition: int = ranged(-1, 2**31 - 1, default=-1)
    client_id: str = ""
    sender: Sender = "clients"
    share_ppm: int = ranged(1, MILLION, default=300_000)
    times: int = ranged(0, _COUNT_MAX, default=0)
    on_call: int = ranged(0, _COUNT_MAX, default=0)

    def __post_init__(self) -> None:
        OfOneTopic.__post_init__(self)
        error = registered(ERRORS, self.error, "error")
        if not has_error(_KEYS[self.api]):
            raise ValueError(f"the response to {self.api} has no error code")
        if self.after == "appended" and self.api not in WRITING:
            raise ValueError(
                f"{self.api} writes nothing: use after='refused'; 'appended' is for"
                f" {', '.join(sorted(WRITING))}"
            )
        if self.topic and error in AT_THE_TOP and self.api in IN_ENTRIES:
            raise ValueError(f"{self.error} is for a whole {self.api}: leave the topic out")
        if self.times and self.on_call:
            raise ValueError("times and on_call: give one of them")

    def effect(self) -> Effect:
        """See LinkFault."""
        return Answer(
            api=find_api(self.api).name,
            error=self.error,
            topic=self.topic,
            partition=self.partition,
            client_id=self.client_id,
            times=self.times,
            share_ppm=self.share_ppm,
            on_call=self.on_call,
            after=self.after,
        )


@named("observe", "requests of one kind are counted", targets=LINK_ROLES)
class ObserveRequests(OfOneTopic):
    """Requests of the kind `api` are counted, and nothing else: no fault of a schedule."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Observe})
    api: str = "Produce"
    topic: str = ""
    partition: int = ranged(-1, 2**31 - 1, default=-1)
    client_id: str = ""
    sender: Sender = "clients"

    def effect(self) -> Effect:
        """See LinkFault."""
        return Observe(self.api, self.topic, self.partition, self.client_id)
