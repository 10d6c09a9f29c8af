"""One whole broker on a real port and disk, with a controller that lives in the test."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.broker.controller_requests.producer_ids import ProducerIds
from quorumlog.broker.groups.io.group_service import GroupService
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.quotas.throttle import BrokerQuotas
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.server.api import BrokerContext, as_release
from quorumlog.broker.server.own_connection import OwnConnection
from quorumlog.broker.server.server import Server
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.io.broker_channels import kafka_peers
from quorumlog.broker.transactions.io.transaction_service import TransactionService
from quorumlog.clock import wall_clock_ms
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.cluster_changes import RequestFor
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller_client import (
    NewTopic,
    NewVoter,
    ProducerIdBlock,
    QuorumDescription,
    QuorumReplica,
    TopicResult,
    VoterChangeResult,
)
from quorumlog.metadata_quorum.controller_requests import (
    AllocateProducerIds,
    AlterPartitions,
    AssignReplicas,
    ControllerRequest,
    CreateTopics,
    DeleteTopics,
    DescribeQuorum,
    FindTopics,
    ProducerIdsReply,
    ReportLogs,
    TopicResults,
)
from quorumlog.metadata_quorum.image import (
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    ImagePublisher,
    PartitionImage,
    TopicImage,
)
from quorumlog.metadata_quorum.image.features import ANNOUNCED
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.io.security import PLAINTEXT
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.scripted_verifier import ScriptedVerifier
from tests.support.settings import static_config

ResponseT = TypeVar("ResponseT")
BROKER = BrokerId(1)
SETTINGS = BrokerSettings(
    offsets_topic_num_partitions=3,
    offsets_topic_replication_factor=1,
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=100,
    transaction_state_log_num_partitions=3,
    transaction_state_log_replication_factor=1,
)


class TestController:
    """Creates and deletes topics at once, on the one broker there is."""

    __test__ = False

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.publishers: list[ImagePublisher] = []
        self.topics_created = 0
        self.producer_ids_given = 0
        self.quorum_level = 0
        self.voter_changes: list[tuple[object, object]] = []
        self.voter_change_result = VoterChangeResult(error_code=ErrorCode.NONE)

    def register(self, port: int) -> None:
        broker = BrokerImage(
            broker_id=BROKER,
            broker_epoch=1,
            incarnation_id="",
            host="127.0.0.1",
            port=port,
            control_address="",
            fenced=False,
            features=dict(ANNOUNCED),
        )
        partitions = frozenset(
            TopicPartition(topic.name, index)
            for topic in self.image.topics.values()
            for index in range(len(topic.partitions))
        )
        delta = ClusterDelta(brokers=frozenset({BROKER}), partitions=partitions)
        self.publish(delta, brokers={BROKER: broker})

    def publish(self, delta: ClusterDelta, **changes: object) -> None:
        self.image = replace(self.image, controller_id=BROKER, **changes)  # type: ignore[arg-type]
        for publisher in self.publishers:
            publisher.publish(delta, self.image)

    async def ask(self, request: RequestFor[ResponseT]) -> ResponseT:
        response: object
        match request:
            case CreateTopics():
                made = [self._create(topic, request.validate_only) for topic in request.topics]
                response = TopicResults(results=tuple(made))
            case FindTopics():
                response = TopicResults(results=tuple(map(self._found, request.names)))
            case DeleteTopics():
                response = TopicResults(results=tuple(map(self._delete, request.topic_ids)))
            case DescribeQuorum():
                response = self._described()
            case AllocateProducerIds():
                block = ProducerIdBlock(first=self.producer_ids_given, count=10)
                self.producer_ids_given += 10
                response = ProducerIdsReply(error_code=ErrorCode.NONE, block=block)
            case AlterPartitions() | AssignReplicas() | ReportLogs():
                raise NotImplementedError  # one broker is its whole ISR
            case _:
                response = self.decide(cast("ControllerRequest", request))
        return cast("ResponseT", response)

    def _create(self, new: NewTopic, validate_only: bool) -> TopicResult:
        if new.name in self.image.topics:
            return TopicResult(name=new.name, error_code=ErrorCode.TOPIC_ALREADY_EXISTS)
        if new.replication_factor > 1:
            return TopicResult(
                name=new.name,
                error_code=ErrorCode.INVALID_REPLICATION_FACTOR,
                error_message="there is one broker",
            )
        count = max(new.partitions, 1)
        self.topics_created += 1
        topic_id = TopicId(self.topics_created.to_bytes(16, "big"))
        partition = PartitionImage(
            leader_id=BROKER,
            leader_epoch=Epoch(0),
            partition_epoch=Epoch(0),
            replicas=(BROKER,),
            isr=(BROKER,),
        )
        topic = TopicImage(
            name=new.name,
            topic_id=topic_id,
            partitions=(partition,) * count,
            configs=dict(new.configs),
        )
        if not validate_only:
            made = frozenset(TopicPartition(new.name, index) for index in range(count))
            self.publish(
                ClusterDelta(partitions=made),
                topics={**self.image.topics, new.name: topic},
                topic_names={**self.image.topic_names, topic_id: new.name},
            )
        return TopicResult(
            name=new.name,
            error_code=ErrorCode.NONE,
            topic_id=topic_id,
            partitions=count,
            replication_factor=1,
        )

    def _found(self, name: str) -> TopicResult:
        topic = self.image.topics.get(name)
        if topic is None:
            return TopicResult(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return TopicResult(name=name, error_code=ErrorCode.NONE, topic_id=topic.topic_id)

    def _delete(self, topic_id: TopicId) -> TopicResult:
        name = self.image.topic_names.get(topic_id)
        if name is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
            return TopicResult(name="", error_code=unknown, topic_id=topic_id)
        self.publish(
            ClusterDelta(deleted_topics={name: topic_id}),
            topics={key: value for key, value in self.image.topics.items() if key != name},
            topic_names={
                key: value for key, value in self.image.topic_names.items() if key != topic_id
            },
        )
        return TopicResult(name=name, error_code=ErrorCode.NONE, topic_id=topic_id)

    @property
    def kraft_version(self) -> int:
        return self.quorum_level

    async def add_voter(
        self, voter: NewVoter, *, ack_when_committed: bool = True
    ) -> VoterChangeResult:
        self.voter_changes.append((voter, ack_when_committed))
        return self.voter_change_result

    async def remove_voter(self, voter_id: BrokerId, directory_id: str) -> VoterChangeResult:
        self.voter_changes.append((voter_id, directory_id))
        return self.voter_change_result

    async def upgrade_kraft_version(self, kraft_version: int) -> VoterChangeResult:
        self.quorum_level = kraft_version
        return self.voter_change_result

    def _described(self) -> QuorumDescription:
        alone = QuorumReplica(
            replica_id=BROKER, log_end_offset=Offset(7), last_fetch_ms=5, last_caught_up_ms=4
        )
        observer = QuorumReplica(replica_id=BrokerId(9), log_end_offset=Offset(6))
        return QuorumDescription(
            leader_id=BROKER,
            leader_epoch=Epoch(3),
            high_watermark=Offset(6),
            voters=(alone,),
            observers=(observer,),
            voter_addresses={BROKER: "[::1]:9093"},
        )

    def decide(self, request: ControllerRequest) -> object:
        """Decide as the real controller does, and publish the records."""
        controller = Controller(
            self.image, ControllerSettings(), random_bytes=random.Random(7).randbytes, now_ms=0
        )
        decision = controller.decide(request, now_ms=0, base_offset=self.image.end_offset)
        for offset, record in enumerate(decision.records, start=self.image.end_offset):
            controller.apply(Offset(offset), record)
        end_offset = controller.cluster.end_offset
        delta, image = controller.cluster.publish(
            end_offset=end_offset, epoch=Epoch(1), controller_id=BROKER
        )
        self.publish(
            delta,
            end_offset=end_offset,
            brokers=image.brokers,
            topics=image.topics,
            broker_configs=image.broker_configs,
            group_configs=image.group_configs,
            client_metrics=image.client_metrics,
            access=image.access,
            features=image.features,
        )
        return decision.response


class SingleBroker:
    """The parts of a broker for a test; `violations` and `failures` must stay empty.

    `has_real_verifier`: verify with transaction coordinators, not with `verifier`.
    """

    def __init__(
        self,
        directory: Path,
        settings: BrokerSettings = SETTINGS,
        controller: TestController | None = None,
        *,
        has_real_verifier: bool = False,
    ) -> None:
        self.violations: list[InvariantViolation] = []
        self.failures: list[BaseException] = []
        self.controller = controller or TestController()
        self.disk_queue, self.verifier = HeldQueue(), ScriptedVerifier()
        self.replicas = Replicas(
            broker_id=BROKER,
            settings=settings,
            logs=LogDirectories([LogDirectory(RealDisk(), str(directory), LogSettings())]),
            disk_queue=self.disk_queue,
            controller=self.controller,
            security=PLAINTEXT,
        )
        self.metadata = ImageWatch(self.replicas.is_to_lead)
        ids = ProducerIds(broker_id=BROKER, metadata=self.metadata, controller=self.controller)
        self.transactions = TransactionService(
            broker_id=BROKER,
            replicas=self.replicas,
            next_producer_id=ids.next,
            peers=kafka_peers(BROKER, settings, {}, PLAINTEXT, self.failures.append),
            settings=settings,
            wall_ms=wall_clock_ms,
            on_fatal=self.failures.append,
        )
        verifier = self.transactions.verifier if has_real_verifier else self.verifier
        self.groups = GroupService(
            replicas=self.replicas,
            settings=settings,
            verifier=verifier,
            wall_ms=wall_clock_ms,
            on_fatal=self.violations.append,
        )
        for listener in (self.groups, self.transactions, self.metadata):
            self.replicas.add_leadership_listener(listener)
        self.context = BrokerContext(
            broker_id=BROKER,
            cluster_id="test",
            settings=settings,
            static=static_config(settings, LogSettings()),
            metadata=self.metadata,
            replicas=self.replicas,
            groups=self.groups,
            transactions=self.transactions,
            verifier=verifier,
            producer_ids=ids,
            controller=self.controller,
            handlers=HANDLERS,
            wall_ms=wall_clock_ms,
            quotas=BrokerQuotas(settings),
        )
        self.server = Server(as_release(self.context), on_fatal=self.violations.append)
        self.transactions.reach_itself_by(partial(OwnConnection.open, self.context))
        self.port = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.controller.publishers = [self.replicas, self.groups, self.transactions]
        self.controller.publishers += [self.context.quotas, self.metadata]
        await self.replicas.start()
        self.port = await self.server.start("127.0.0.1", 0)
        self.context.static.texts["advertised.listeners"] = f"PLAINTEXT://{self.bootstrap}"
        self.controller.register(self.port)
        self.replicas.registered(1)  # by now the image has the partitions that a former process led

    async def stop(self) -> None:
        await self.server.stop(grace_ms=100)
        self.groups.stop()
        await self.transactions.stop()
        await self.replicas.stop()
        assert self.violations == self.failures == []


@asynccontextmanager
async def single_broker(
    directory: Path,
    settings: BrokerSettings = SETTINGS,
    controller: TestController | None = None,
    *,
    has_real_verifier: bool = False,
) -> AsyncIterator[SingleBroker]:
    broker = SingleBroker(directory, settings, controller, has_real_verifier=has_real_verifier)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
