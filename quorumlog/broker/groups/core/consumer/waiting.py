"""Requests that wait until the target of their group's epoch is made."""

from dataclasses import dataclass, field

from quorumlog.broker.groups.core.consumer.heartbeats import Admitted
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.consumer.targets import TargetJob
from quorumlog.broker.groups.core.requests import Join


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """A request that is taken over, and not answered. `epoch`: of the target that it needs."""

    request_id: int
    request: ConsumerHeartbeat | Join
    admitted: Admitted
    epoch: int


@dataclass(slots=True)
class AwaitedTarget:
    """The job that is under way for a group, and the requests that wait for it or for the next."""

    job: TargetJob
    waiting: list[WaitingRequest] = field(default_factory=list)
