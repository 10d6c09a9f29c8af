"""A controller with its log in a list: a driver without disk, network or quorum."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from quorumlog.metadata_quorum.cluster_changes import (
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResult,
)
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.log_reports import ControllerRules
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    ElectionResult,
    HeartbeatReply,
    IsrProposal,
    LogReport,
    NewTopic,
    Reassignment,
    ReassignmentResult,
    RegistrationReply,
    ReplicaDirectory,
    TopicResult,
)
from quorumlog.metadata_quorum.controller_requests import (
    AlterConfigs,
    AlterPartitions,
    AlterReassignments,
    AssignReplicas,
    ConfigResults,
    ControllerRequest,
    CreateTopics,
    ElectLeaders,
    IsrResults,
    ReportLogs,
    TopicResults,
)
from quorumlog.metadata_quorum.image.features import ANNOUNCED
from quorumlog.metadata_quorum.image.model import BrokerImage, ClusterImage, PartitionImage
from quorumlog.metadata_quorum.image.records import MetadataRecord, decode_record, encode_record
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.image.snapshot_records import image_of as image_of_records
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, PartitionIndex, TopicId

SETTINGS = ControllerSettings(default_replication_factor=3)
T = TypeVar("T")


def image_of(cluster: ClusterReplay) -> ClusterImage:
    """Freeze a copy, whatever the replay has published before."""
    _, image = cluster.publish(
        end_offset=cluster.end_offset, epoch=Epoch(1), controller_id=BrokerId(1)
    )
    return image


def one_at_once() -> type[Controller]:
    """A controller that decides about one partition at a time."""

    class OneAtOnce(Slices):
        at_once = 1

    class Slicing(Controller):
        rules = ControllerRules(slices=OneAtOnce)

    return Slicing


@dataclass
class Bench:
    settings: ControllerSettings = SETTINGS
    now_ms: int = 1000
    log: list[MetadataRecord] = field(default_factory=list)
    controller_class: type[Controller] = Controller
    features: Mapping[str, tuple[int, int]] = field(default_factory=lambda: ANNOUNCED)

    def __post_init__(self) -> None:
        self.random_bytes = random.Random(7).randbytes
        self.controller = self.take_over()

    def replay(self) -> ClusterReplay:
        replay = ClusterReplay(ClusterImage())
        for offset, record in enumerate(self.log):
            replay.apply(Offset(offset), decode_record(encode_record(record)))
        return replay

    def take_over(self) -> Controller:
        return self.controller_class(
            image_of(self.replay()),
            self.settings,
            random_bytes=self.random_bytes,
            now_ms=self.now_ms,
        )

    def ask(self, request: ControllerRequest) -> Any:
        """Decide, slice by slice, and return the response."""
        while True:
            decision = self.controller.decide(
                request, now_ms=self.now_ms, base_offset=Offset(len(self.log))
            )
            response = self.carry_out(decision)
            if not decision.goes_on:
                self.elect_rest()
                return response

    def outcomes(self, request: ControllerRequest) -> list[tuple[str, str]]:
        """Return the code and the message of each result."""
        results = self.ask(request).results
        return [(one.error_code.name, one.error_message or "") for one in results]

    def codes(self, request: ControllerRequest) -> list[str]:
        """Return the name of the code of each result."""
        return [code for code, _ in self.outcomes(request)]

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        """Check that no record is written meanwhile."""
        before = len(self.log)
        yield
        assert len(self.log) == before

    def expire(self, after_ms: int = 0) -> BrokerId | None:
        """Fence a broker whose session is over after this time; return its id."""
        self.now_ms += after_ms
        return self.carry_out(self.controller.decide_expiry(self.now_ms))

    def restored(self) -> ClusterImage:
        """Return the image of a node that starts from a snapshot of this cluster."""
        shown = image_of(self.controller.cluster)
        return image_of_records(records_of(shown), Offset(shown.end_offset))

    def broker(self, broker_id: int) -> BrokerImage:
        return self.controller.cluster.brokers[BrokerId(broker_id)]

    def topic_id(self, topic: str = "t") -> TopicId:
        topic_id = self.controller.cluster.topic_id(topic)
        assert topic_id is not None
        return topic_id

    def activate(self) -> None:
        self.carry_out(self.controller.decide_activation())
        self.elect_rest()

    def elect_rest(self) -> None:
        while self.controller.has_elections:
            self.carry_out(self.controller.decide_elections())

    def carry_out(self, decision: Decision[T]) -> T:
        for record in decision.records:
            self.controller.apply(Offset(len(self.log)), record)
            self.log.append(record)
        return decision.response

    def register(
        self, broker_id: int, incarnation: str = "a", port: int = 0, **seen: Any
    ) -> RegistrationReply:
        reply: RegistrationReply = self.ask(self.registration(broker_id, incarnation, port, **seen))
        return reply

    def register_with_remark(self, broker_id: int, incarnation: str, **seen: Any) -> str | None:
        """Register a broker, and return the remark for the operator."""
        while True:
            decision = self.controller.decide(
                self.registration(broker_id, incarnation, **seen),
                now_ms=self.now_ms,
                base_offset=Offset(len(self.log)),
            )
            self.carry_out(decision)
            if not decision.goes_on:
                return decision.remark

    def registration(
        self,
        broker_id: int,
        incarnation: str,
        port: int = 0,
        *,
        directory: str = "",
        boot: str | None = "boot",
        previous_broker_epoch: int = -1,
        min_insync_replicas: int = 1,
        rack: str | None = None,
        log_dirs: tuple[str, ...] = (),
        has_offline_dirs: bool = False,
        incarnations: Mapping[str, tuple[str, ...]] | None = None,
    ) -> BrokerRegistration:
        return BrokerRegistration(
            broker_id=BrokerId(broker_id),
            incarnation_id=incarnation,
            host="localhost",
            port=9092,
            control_address=f"localhost:{port or 19000 + broker_id}",
            rack=rack,
            features=dict(self.features),
            directory_id=directory or f"d{broker_id}",
            boot_id=boot,
            previous_broker_epoch=previous_broker_epoch,
            min_insync_replicas=min_insync_replicas,
            log_dirs=log_dirs,
            has_offline_dirs=has_offline_dirs,
            incarnations=incarnations,
        )

    def heartbeat(
        self,
        broker_id: int,
        *,
        offline: tuple[str, ...] = (),
        unanswering: tuple[int, ...] = (),
        **fields: int,
    ) -> HeartbeatReply:
        request = self.heartbeat_request(broker_id, offline=offline, **fields)
        leaders = tuple(map(BrokerId, unanswering)) or None
        reply: HeartbeatReply = self.ask(replace(request, unanswering=leaders))
        return reply

    def heartbeat_request(
        self, broker_id: int, *, offline: tuple[str, ...] = (), **fields: int
    ) -> BrokerHeartbeat:
        broker = self.controller.cluster.brokers.get(BrokerId(broker_id))
        return BrokerHeartbeat(
            broker_id=BrokerId(broker_id),
            broker_epoch=fields.get("broker_epoch", broker.broker_epoch if broker else -1),
            metadata_offset=fields.get("metadata_offset", len(self.log) - 1),
            want_fence=bool(fields.get("want_fence", False)),
            is_opening=bool(fields.get("is_opening", False)),
            want_shut_down=bool(fields.get("want_shut_down", False)),
            offline_log_dirs=offline,
            has_failed=bool(fields.get("has_failed", False)),
        )

    def let_in(self, broker_id: int, incarnation: str = "a", **seen: Any) -> None:
        """Register a broker, and let it in."""
        assert self.register(broker_id, incarnation, **seen).error_code is ErrorCode.NONE
        self.heartbeat(broker_id)

    def start(self, *broker_ids: int) -> Self:
        """Let brokers in; return the bench."""
        for broker_id in broker_ids:
            self.let_in(broker_id)
        return self

    def create(self, topic: NewTopic) -> TopicResult:
        results: TopicResults = self.ask(CreateTopics(topics=(topic,)))
        return results.results[0]

    def alter(
        self, name: str, *changes: ConfigChange, validate_only: bool = False, **more: bool
    ) -> ConfigResult:
        """Alter one topic's configuration; `replaces_all=True`: all of it; `is_broker=True`."""
        wanted = ConfigChanges(name=name, changes=changes, **more)
        results: ConfigResults = self.ask(
            AlterConfigs(topics=(wanted,), validate_only=validate_only)
        )
        return results.results[0]

    def elect(self, *partitions: tuple[str, int], unclean: bool = False) -> list[ElectionResult]:
        return [*self.ask(ElectLeaders(partitions=partitions, unclean=unclean)).results]

    def reassign(
        self, *wanted: tuple[str, int, tuple[int, ...] | None], **more: bool
    ) -> list[ReassignmentResult]:
        """Move (topic, partition) to replicas; None cancels."""
        moves = tuple(
            Reassignment(
                topic=name, partition=index, replicas=None if replicas is None else ids(*replicas)
            )
            for name, index, replicas in wanted
        )
        options: dict[str, Any] = {"may_change_replication_factor": True, **more}
        return [*self.ask(AlterReassignments(wanted=moves, **options)).results]

    def die(self, broker_id: int) -> None:
        self.now_ms += 1
        broker = self.controller.cluster.brokers.get(BrokerId(broker_id))
        epoch = -1 if broker is None else broker.broker_epoch
        goes_on = True
        while goes_on:
            decision = self.controller.decide_process_died(
                BrokerId(broker_id), broker_epoch=epoch, now_ms=self.now_ms
            )
            self.carry_out(decision)
            goes_on = decision.goes_on

    def revive(self, broker_id: int) -> None:
        """A live broker that was taken for dead registers again, as it is."""
        self.register(broker_id)
        self.heartbeat(broker_id)

    def proposal(self, *members: int, topic: str = "t", **changes: Any) -> IsrProposal:
        """Return the proposal of an ISR of partition 0 by its leader."""
        partition, cluster = self.partition(topic), self.controller.cluster
        made = IsrProposal(
            topic_id=self.topic_id(topic),
            partition=PartitionIndex(0),
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr=tuple((one, cluster.brokers[one].broker_epoch) for one in ids(*members)),
        )
        return replace(made, **changes)

    def propose(self, *proposals: IsrProposal, by: int = 1, epoch_drift: int = 0) -> IsrResults:
        """Send proposals of broker `by`; `epoch_drift`: from its broker epoch to that it names."""
        broker = self.broker(by)
        results: IsrResults = self.ask(
            AlterPartitions(
                broker_id=broker.broker_id,
                broker_epoch=broker.broker_epoch + epoch_drift,
                proposals=proposals,
            )
        )
        return results

    def join_isr(
        self, broker_id: int, topic: str = "t", answers: ErrorCode = ErrorCode.NONE
    ) -> None:
        """The leader of partition 0 proposes that this broker is in sync, and gets `answers`."""
        partition = self.partition(topic)
        members = [r for r in partition.replicas if r in {*partition.isr, broker_id}]
        proposal = self.proposal(*members, topic=topic)
        [granted] = self.propose(proposal, by=partition.leader_id).results
        assert granted.error_code is answers

    def assign(self, broker_id: int, directory: str, topic: str = "t", index: int = 0) -> None:
        """The broker reports the log directory of its replica."""
        replica = ReplicaDirectory(
            directory_id=directory, topic_id=self.topic_id(topic), partition=PartitionIndex(index)
        )
        request = AssignReplicas(
            broker_id=BrokerId(broker_id),
            broker_epoch=self.broker(broker_id).broker_epoch,
            replicas=(replica,),
        )
        assert self.ask(request).error_code is ErrorCode.NONE

    def report(
        self,
        broker_id: int,
        end: int,
        *,
        epoch: int = 0,
        whole: bool = True,
        topic: str = "t",
        index: int = 0,
    ) -> ErrorCode:
        """The broker reports the intact part of its log of a partition."""
        report = LogReport(
            topic_id=self.topic_id(topic),
            partition=PartitionIndex(index),
            last_epoch=Epoch(epoch),
            log_end_offset=Offset(end),
            is_whole=whole,
        )
        request = ReportLogs(
            broker_id=BrokerId(broker_id),
            broker_epoch=self.broker(broker_id).broker_epoch,
            reports=(report,),
        )
        code: ErrorCode = self.ask(request).error_code
        return code

    def partition(self, topic: str = "t", index: int = 0) -> PartitionImage:
        partition = self.controller.cluster.partition(topic, index)
        assert partition is not None
        return partition


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def topic(name: str = "t", *replicas: int, **configs: str) -> NewTopic:
    """Partition 0 on `replicas`, in this order."""
    return NewTopic(
        name=name,
        assignments={0: ids(*(replicas or (1, 2, 3)))},
        configs={key.replace("_", "."): value for key, value in configs.items()},
    )


def setting(name: str, value: str | None) -> ConfigChange:
    return ConfigChange(name=name, value=value)


def deletion(name: str) -> ConfigChange:
    return ConfigChange(name=name, operation=ConfigOperation.DELETE)
