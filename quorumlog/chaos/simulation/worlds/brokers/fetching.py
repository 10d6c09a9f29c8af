"""How a simulated broker fetches from leaders and answers followers: a loop for each partition."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from quorumlog.backoff import Backoff
from quorumlog.broker.following.log.followed_partition import (
    FollowedPartition,
    Position,
    take_answer,
)
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicId, TopicPartition
from quorumlog.wire.codec.messages.fetch import EpochEndOffset, PartitionData

FETCH_TIMEOUT_US: Final = 800_000
FETCH_PAUSE_US: Final = 40_000  # after an answer without records
BACKOFF: Final = Backoff(20, 200)


class Broker(Protocol):
    """The simulated broker of these fetches, and the leader or the follower at their other end."""

    @property
    def machine(self) -> Machine:
        """The machine of its process."""

    @property
    def node_id(self) -> BrokerId:
        """Its id in the cluster."""

    @property
    def broker_epoch(self) -> int:
        """The epoch of its registration; -1: none yet."""

    @property
    def replicas(self) -> ReplicaSet:
        """The replicas of the running process."""

    @property
    def fetching(self) -> "Fetching":
        """Its fetches, and its responses to others."""

    def take(self, action: Callable[..., None], *arguments: object) -> None:
        """Call `action` in a turn of the process, if it runs."""

    def learn(self, end: int) -> None:
        """Apply the metadata log up to its record `end`."""


@dataclass(slots=True)
class _Following:
    """A partition that is fetched. `request_id`: of the newest request."""

    followed: FollowedPartition
    leader_id: BrokerId
    request_id: int = 0


class Asked(NamedTuple):
    """A fetch of a follower. `incarnation` and `broker_epoch` are those of its process.

    It names the topic by its id (KIP-516), so that it is for no other of the same name.
    """

    follower: Broker
    incarnation: int
    broker_epoch: int
    at: TopicPartition
    topic_id: TopicId
    request_id: int
    position: Position

    def __str__(self) -> str:
        return f"{self.follower.node_id} asks for {self.at}: {self.position}"


class Fetching:
    """The Fetchers of one broker, and its answers to others."""

    def __init__(
        self,
        node: Broker,
        environment: Environment,
        peers: Mapping[int, Broker],
        *,
        fetch_bytes_max: int,
    ) -> None:
        self._node: Final = node
        self._environment: Final = environment
        self._peers: Final = peers
        self._fetch_bytes_max: Final = fetch_bytes_max
        self._following: Final[dict[TopicPartition, _Following]] = {}
        self._requests = 0

    def forget(self) -> None:
        """Begin another life: nothing is followed."""
        self._following.clear()

    def wake(self) -> None:
        """Do nothing: a fetch is due soon."""

    def touch(self, driver: PartitionDriver) -> None:
        """Do nothing: a fetch asks for what there is then."""

    def note_flush_ended(self, driver: PartitionDriver) -> None:
        """Do nothing: a fetch is due soon."""

    def follow(self, driver: PartitionDriver, leader_id: BrokerId, leader_epoch: Epoch) -> None:
        """Fetch from this leader."""
        following = _Following(FollowedPartition(driver, leader_epoch), leader_id)
        self._following[driver.topic_partition] = following
        self._fetch(driver.topic_partition, following, 0)

    def unfollow(self, driver: PartitionDriver) -> None:
        """Fetch no more."""
        self._following.pop(driver.topic_partition, None)

    def _fetch(self, at: TopicPartition, following: _Following, request_id: int) -> None:
        """Ask the leader, unless a newer request is under way."""
        if self._following.get(at) is not following or following.request_id != request_id:
            return
        self._requests += 1
        following.request_id = self._requests
        again = (self._node.take, self._fetch, at, following, self._requests)
        if self._node.broker_epoch < 0 or not following.followed.may_ask(
            self._node.machine.now_ms()
        ):
            self._node.machine.later(FETCH_PAUSE_US, *again)
            return
        leader = self._peers[following.leader_id]
        asked = Asked(
            self._node,
            self._node.machine.incarnation,
            self._node.broker_epoch,
            at,
            following.followed.driver.topic_id,
            self._requests,
            following.followed.position(),
        )
        for after_us in self._environment.network.arrivals_us(self._node.node_id, leader.node_id):
            self._environment.timeline.push(
                after_us, leader.take, leader.fetching.answer_fetch, asked
            )
        self._node.machine.later(FETCH_TIMEOUT_US, *again)

    def answer_fetch(self, asked: Asked) -> None:
        """Answer a follower: with records, or why not."""
        answer, follower = self._answer(asked), asked.follower
        for after_us in self._environment.network.arrivals_us(self._node.node_id, follower.node_id):
            self._environment.timeline.push(
                after_us, follower.fetching.fetch_answered, asked, answer
            )

    def _answer(self, asked: Asked) -> PartitionData:
        driver, position = self._node.replicas.drivers.get(asked.at), asked.position
        if driver is None:
            return PartitionData(error_code=self._node.replicas.error_for_missing(asked.at))
        if driver.topic_id != asked.topic_id:
            return PartitionData(error_code=ErrorCode.INCONSISTENT_TOPIC_ID)
        fetched = events.FollowerFetched(
            broker_id=asked.follower.node_id,
            broker_epoch=asked.broker_epoch,
            leader_epoch=position.leader_epoch,
            fetch_offset=position.fetch_offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=position.log_start_offset,
        )
        verdict = driver.judge_follower_fetch(self._node.machine.now_ms(), fetched)
        answer = PartitionData(
            error_code=verdict.error_code,
            high_watermark=driver.partition.state.high_watermark,
            log_start_offset=driver.partition.state.log_start_offset,
        )
        if verdict.diverging is not None:
            epoch, end_offset = verdict.diverging
            answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        elif verdict.error_code is ErrorCode.NONE:
            read = driver.read(
                position.fetch_offset,
                max_bytes=self._fetch_bytes_max,
                end=ReadEnd.LOG_END,
                at_least_one=True,
                may_wait=True,
            )
            answer.records = b"".join(read.chunks)
        return answer

    def fetch_answered(self, asked: Asked, answer: PartitionData) -> None:
        """Take in an answer, also a late one, if it is for this process."""
        if self._node.machine.incarnation == asked.incarnation:
            self._node.take(self._take_answer, asked, answer)

    def _take_answer(self, asked: Asked, answer: PartitionData) -> None:
        at, request_id = asked.at, asked.request_id
        following = self._following.get(at)
        if following is None or following.followed.driver.topic_id != asked.topic_id:
            return  # it is of another topic by now
        if following.followed.leader_epoch != asked.position.leader_epoch:
            return  # it is followed in a newer epoch by now
        take_answer(
            following.followed,
            asked.position,
            answer,
            now_ms=self._node.machine.now_ms(),
            wall_ms=self._node.machine.now_ms,
            backoff=BACKOFF,
            random_fraction=0.5,
        )
        following = self._following.get(at)
        if following is not None and following.request_id == request_id:
            pause_us = 1_000 if answer.records else FETCH_PAUSE_US
            self._node.machine.later(
                pause_us, self._node.take, self._fetch, at, following, request_id
            )
