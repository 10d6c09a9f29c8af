"""Create, grow and delete topics.

It refuses, with Kafka's codes and in Kafka's order: bad or clashing names, existing topics, bad
configurations, counts that make no sense, assignments to brokers that are not there.
Sources: KIP-4 (admin requests), KIP-464 (-1 means the default), KAFKA-14996 (a request too big for
one batch is refused, rather than bring down one controller after another).
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.metadata_quorum.controller.brokers import active_brokers
from quorumlog.metadata_quorum.controller.configs import config_records, configs_error
from quorumlog.metadata_quorum.controller.placement import place_replicas
from quorumlog.metadata_quorum.controller.requests import (
    CreateTopics,
    Decision,
    DeleteTopics,
    GrowTopic,
    TopicResults,
)
from quorumlog.metadata_quorum.controller.settings import ControllerSettings
from quorumlog.metadata_quorum.controller_client import NewTopic, TopicResult
from quorumlog.metadata_quorum.image.records import (
    MetadataRecord,
    Partition,
    RemoveTopic,
    Topic,
)
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicId

NAME_LENGTH_MAX: Final = 249  # with "-" and a partition, a directory name of 255 bytes
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
RECORDS_PER_REQUEST_MAX: Final = 10_000
METADATA_TOPIC: Final = "__cluster_metadata"
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


class TopicRefused(Exception):
    """A request for one topic that is refused: becomes its result."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class TopicDecisions:
    """Decides about topics; mutates nothing. `draw(n)` gives n random bytes."""

    def __init__(
        self, cluster: ClusterReplay, settings: ControllerSettings, draw: Callable[[int], bytes]
    ) -> None:
        self._cluster: Final = cluster
        self._settings: Final = settings
        self._draw: Final = draw

    def decide_create(self, request: CreateTopics) -> Decision[TopicResults]:
        """Create what can be created; a result per topic."""
        names = [topic.name for topic in request.topics]
        taken = {name.replace(".", "_"): name for name in self._cluster.topic_names()}
        records: list[MetadataRecord] = []
        results = []
        for topic in request.topics:
            try:
                _check_single(topic.name, names)
                self._check_name(topic.name, taken)
                topic_records, result = self._create(topic)
                _check_room(len(records) + len(topic_records))
            except TopicRefused as refusal:
                results.append(_result(topic.name, refusal))
                continue
            taken[topic.name.replace(".", "_")] = topic.name
            records += topic_records
            results.append(result)
        return Decision(
            response=TopicResults(results=tuple(results)),
            records=() if request.validate_only else tuple(records),
        )

    def decide_delete(self, request: DeleteTopics) -> Decision[TopicResults]:
        """Delete what exists; a result per name."""
        records: list[MetadataRecord] = []
        results = []
        for name in request.names:
            topic_id = self._cluster.topic_id(name)
            if request.names.count(name) > 1:
                refusal = TopicRefused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                results.append(_result(name, refusal))
            elif topic_id is None:
                unknown = TopicRefused(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "This server does not host this topic-partition.",
                )
                results.append(_result(name, unknown))
            else:
                records.append(RemoveTopic(topic_id=topic_id))
                done = TopicResult(name=name, error_code=ErrorCode.NONE, topic_id=topic_id)
                results.append(done)
        return Decision(response=TopicResults(results=tuple(results)), records=tuple(records))

    def decide_grow(self, request: GrowTopic) -> Decision[TopicResults]:
        """Add partitions behind the last one."""
        try:
            records, result = self._grow(request)
        except TopicRefused as refusal:
            return Decision(response=TopicResults(results=(_result(request.name, refusal),)))
        return Decision(
            response=TopicResults(results=(result,)),
            records=() if request.validate_only else tuple(records),
        )

    def _check_name(self, name: str, taken: Mapping[str, str]) -> None:
        problem = name_error(name)
        if problem is not None:
            raise TopicRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name == METADATA_TOPIC:
            raise TopicRefused(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
            )
        clash = taken.get(name.replace(".", "_"))
        if clash == name:
            raise TopicRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if clash is not None:  # their metrics would have one name
            raise TopicRefused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {clash}",
            )

    def _create(self, topic: NewTopic) -> tuple[list[MetadataRecord], TopicResult]:
        problem = configs_error(topic.configs)
        if problem is not None:
            raise TopicRefused(ErrorCode.INVALID_CONFIG, problem)
        if topic.assignments:
            assignments = self._check_assignments(topic)
        else:
            partitions = _count(
                topic.partitions,
                self._settings.num_partitions,
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions",
            )
            replication_factor = _count(
                topic.replication_factor,
                self._settings.default_replication_factor,
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor",
            )
            assignments = self._place(partitions, replication_factor)
        topic_id = self._new_topic_id()
        records: list[MetadataRecord] = [Topic(name=topic.name, topic_id=topic_id)]
        records += self._partition_records(topic_id, 0, assignments)
        records += config_records(topic.name, topic.configs)
        result = TopicResult(
            name=topic.name,
            error_code=ErrorCode.NONE,
            topic_id=topic_id,
            partitions=len(assignments),
            replication_factor=len(assignments[0]),
        )
        return records, result

    def _grow(self, request: GrowTopic) -> tuple[list[MetadataRecord], TopicResult]:
        topic_id = self._cluster.topic_id(request.name)
        if topic_id is None:
            raise TopicRefused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )
        existing = self._cluster.partitions(request.name)
        if request.partitions <= len(existing):
            raise TopicRefused(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {request.name} currently has {len(existing)} partition(s); "
                f"{request.partitions} would not be an increase.",
            )
        replication_factor = len(existing[0].replicas)
        assignments = self._place(
            request.partitions - len(existing), replication_factor, first_partition=len(existing)
        )
        records = self._partition_records(topic_id, len(existing), assignments)
        result = TopicResult(
            name=request.name,
            error_code=ErrorCode.NONE,
            topic_id=topic_id,
            partitions=request.partitions,
            replication_factor=replication_factor,
        )
        return records, result

    def _check_assignments(self, topic: NewTopic) -> list[tuple[BrokerId, ...]]:
        if topic.partitions != -1 or topic.replication_factor != -1:
            raise TopicRefused(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but the number of partitions or the "
                "replication factor was not set to -1.",
            )
        if sorted(topic.assignments) != list(range(len(topic.assignments))):
            raise TopicRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        assignments = [tuple(topic.assignments[i]) for i in range(len(topic.assignments))]
        for index, replicas in enumerate(assignments):
            self._check_assignment(index, replicas, len(assignments[0]))
        return assignments

    def _check_assignment(
        self, index: int, replicas: tuple[BrokerId, ...], replication_factor: int
    ) -> None:
        problem = None
        unknown = [replica for replica in replicas if replica not in self._cluster.brokers]
        if not replicas:
            problem = "The manual partition assignment includes an empty replica list."
        elif len({*replicas}) != len(replicas):
            problem = "The manual partition assignment includes a broker more than once."
        elif len(replicas) != replication_factor:
            problem = f"Partition {index} has a replication factor of its own."
        elif unknown:
            problem = (
                f"The manual partition assignment includes broker {unknown[0]}, "
                "but no such broker is registered."
            )
        elif not {*replicas} & active_brokers(self._cluster):
            problem = (
                "All brokers specified in the manual partition assignment for partition "
                f"{index} are fenced or in controlled shutdown."
            )
        if problem is not None:
            raise TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)

    def _place(
        self, partitions: int, replication_factor: int, first_partition: int = 0
    ) -> list[tuple[BrokerId, ...]]:
        _check_size(partitions)
        usable = sorted(active_brokers(self._cluster))
        registered = len(self._cluster.brokers)
        problem = None
        if not usable:
            problem = "All brokers are currently fenced."
        elif replication_factor > registered:
            problem = (
                f"The target replication factor of {replication_factor} cannot be reached "
                f"because only {registered} broker(s) are registered."
            )
        if problem is not None:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): {problem}",
            )
        return place_replicas(
            usable,
            sorted({*self._cluster.brokers} - {*usable}),
            partitions=partitions,
            replication_factor=replication_factor,
            first_partition=first_partition,
            start=int.from_bytes(self._draw(4), "big"),
        )

    def _partition_records(
        self, topic_id: TopicId, first: int, assignments: list[tuple[BrokerId, ...]]
    ) -> list[MetadataRecord]:
        active = active_brokers(self._cluster)
        records: list[MetadataRecord] = []
        for index, replicas in enumerate(assignments, start=first):
            isr = tuple(replica for replica in replicas if replica in active)
            records.append(
                Partition(
                    topic_id=topic_id,
                    partition_id=PartitionIndex(index),
                    replicas=replicas,
                    isr=isr,
                    leader=isr[0],
                )
            )
        return records

    def _new_topic_id(self) -> TopicId:
        """Draw a version 4 UUID: none that KRaft reserves, and no dash first in its base64 text."""
        while True:
            drawn = bytearray(self._draw(16))
            drawn[6] = drawn[6] & 0x0F | 0x40
            drawn[8] = drawn[8] & 0x3F | 0x80
            topic_id = TopicId(bytes(drawn))
            if topic_id[0] >> 2 != 62 and self._cluster.topic_name(topic_id) is None:
                return topic_id


def name_error(name: str) -> str | None:
    """Return what is wrong with a topic's name, in Kafka's words, or None."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in {".", ".."}:
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length "
            f"{NAME_LENGTH_MAX}"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None


def _count(asked: int, default: int, error_code: ErrorCode, what: str) -> int:
    if asked == -1:
        return default
    if asked <= 0:
        raise TopicRefused(error_code, f"{what} was set to an invalid non-positive value.")
    return asked


def _check_single(name: str, names: list[str]) -> None:
    if names.count(name) > 1:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


def _check_room(records: int) -> None:
    if records > RECORDS_PER_REQUEST_MAX:
        raise TopicRefused(
            ErrorCode.POLICY_VIOLATION,
            f"A request may create at most {RECORDS_PER_REQUEST_MAX} records",
        )


def _check_size(partitions: int) -> None:
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise TopicRefused(
            ErrorCode.POLICY_VIOLATION,
            f"A request may create at most {PARTITIONS_PER_REQUEST_MAX} partitions",
        )


def _result(name: str, refusal: TopicRefused) -> TopicResult:
    return TopicResult(name=name, error_code=refusal.error_code, error_message=str(refusal))
