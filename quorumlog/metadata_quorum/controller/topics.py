"""Creates, finds, deletes and grows topics.

It refuses, with Kafka's codes and in Kafka's order: bad or clashing names, existing topics, bad
configurations, invalid counts, counts that are no increase, assignments to unregistered brokers.
Sources: KIP-4 (admin requests), KIP-195 (more partitions), KIP-464 (-1 means the default), KIP-516
(a topic is deleted by its id), KAFKA-14996 (a request too big for one batch is refused: it would
crash one controller after another).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quorumlog.metadata_quorum.controller.assignments import Assignments, Replicas
from quorumlog.metadata_quorum.controller.configs import config_records, configs_error
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.refusals import (
    TopicRefused,
    check_named,
    check_partitions,
    check_records,
    decide_each,
    unknown_topic,
)
from quorumlog.metadata_quorum.controller_client import NewPartitions, NewTopic, TopicResult
from quorumlog.metadata_quorum.controller_requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FindTopics,
    TopicResults,
)
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.records import MetadataRecord, RemoveTopic, Topic
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.topic_names import METADATA_TOPIC, topic_name_error


@dataclass(eq=False)
class TopicDecisions:
    """Decides about topics; changes no state. `random_bytes(n)` returns n random bytes.

    Every method raises TopicRefused for a request that is too large: it is refused whole.
    """

    _cluster: ClusterReplay
    _settings: ControllerSettings
    _assignments: Assignments
    _random_bytes: Callable[[int], bytes]

    def decide_create(self, request: CreateTopics) -> Decision[TopicResults]:
        """Create the valid topics; a result per topic, in the order of the request."""
        check_named(len(request.topics), "topics")
        check_partitions(sum(map(self._wanted_partitions, request.topics)))
        taken = {name.replace(".", "_"): name for name in self._cluster.topic_names()}

        def create(topic: NewTopic, written: int) -> tuple[list[MetadataRecord], TopicResult]:
            self._check_name(topic.name, taken)
            records, result = self._create(topic)
            check_records(written + len(records))
            taken[topic.name.replace(".", "_")] = topic.name
            return records, result

        records, results = decide_each(
            request.topics, create, TopicRefused.result_of, twice="Duplicate topic name."
        )
        return Decision(
            response=TopicResults(results=results), records=() if request.validate_only else records
        )

    def decide_find(self, request: FindTopics) -> Decision[TopicResults]:
        """Return the id of each name: a result per name, in the order of the request."""
        check_named(len(request.names), "topics")
        return Decision(response=TopicResults(results=tuple(map(self._find, request.names))))

    def _find(self, name: str) -> TopicResult:
        topic_id = self._cluster.topic_id(name)
        if topic_id is None:
            return unknown_topic().result_of(name)
        return TopicResult(name=name, error_code=ErrorCode.NONE, topic_id=topic_id)

    def decide_delete(self, request: DeleteTopics) -> Decision[TopicResults]:
        """Delete the existing topics; a result per id, in the order of the request.

        By id alone: a newer topic with the same name stays (KIP-516).
        """
        check_named(len(request.topic_ids), "topics")
        counts = Counter(request.topic_ids)
        records: list[MetadataRecord] = []
        results = []
        for topic_id in request.topic_ids:
            name = self._cluster.topic_name(topic_id)
            if counts[topic_id] > 1:
                twice = TopicRefused(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
                results.append(twice.result_by_id(topic_id))
            elif name is None:
                message = "This server does not host this topic ID."
                unknown = TopicRefused(ErrorCode.UNKNOWN_TOPIC_ID, message)
                results.append(unknown.result_by_id(topic_id))
            else:
                records.append(RemoveTopic(topic_id=topic_id))
                done = TopicResult(name=name, error_code=ErrorCode.NONE, topic_id=topic_id)
                results.append(done)
        return Decision(response=TopicResults(results=tuple(results)), records=tuple(records))

    def _wanted_partitions(self, topic: NewTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return self._settings.num_partitions if topic.partitions == -1 else max(0, topic.partitions)

    def _check_name(self, name: str, taken: Mapping[str, str]) -> None:
        problem = topic_name_error(name)
        if problem is not None:
            raise TopicRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name == METADATA_TOPIC:
            raise TopicRefused(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
            )
        clash = taken.get(name.replace(".", "_"))
        if clash == name:
            raise TopicRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if clash is not None:  # both topics' metrics would have the same name
            raise TopicRefused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {clash}",
            )

    def _create(self, topic: NewTopic) -> tuple[list[MetadataRecord], TopicResult]:
        problem = configs_error(topic.configs)
        if problem is not None:
            raise TopicRefused(ErrorCode.INVALID_CONFIG, problem)
        if topic.assignments:
            assignments = self._assigned(topic)
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
            assignments = self._assignments.place(partitions, replication_factor)
        topic_id = self._new_topic_id()
        records: list[MetadataRecord] = [Topic(name=topic.name, topic_id=topic_id)]
        records += self._assignments.records(topic_id, assignments)
        records += config_records(topic.name, topic.configs)
        result = TopicResult(
            name=topic.name,
            error_code=ErrorCode.NONE,
            topic_id=topic_id,
            partitions=len(assignments),
            replication_factor=len(assignments[0]),
        )
        return records, result

    def _assigned(self, topic: NewTopic) -> list[Replicas]:
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
        self._assignments.check(assignments, len(assignments[0]))
        return assignments

    def decide_create_partitions(self, request: CreatePartitions) -> Decision[TopicResults]:
        """Add partitions to the valid topics; a result per topic, in the order of the request."""
        check_named(len(request.topics), "topics")
        check_partitions(sum(map(self._added, request.topics)))
        records, results = decide_each(
            request.topics,
            lambda topic, _: self._grow(topic),
            TopicRefused.result_of,
            twice="Duplicate topic name.",
        )
        return Decision(
            response=TopicResults(results=results), records=() if request.validate_only else records
        )

    def _added(self, topic: NewPartitions) -> int:
        return max(0, topic.count - self._cluster.partition_count(topic.name))

    def _grow(self, topic: NewPartitions) -> tuple[list[MetadataRecord], TopicResult]:
        topic_id, first = self._cluster.topic_id(topic.name), self._cluster.partition(topic.name, 0)
        if topic_id is None or first is None:
            raise unknown_topic()
        existing = self._cluster.partition_count(topic.name)
        _check_increase(topic, existing)
        assignments = self._assign(topic, existing, first)
        result = TopicResult(
            name=topic.name,
            error_code=ErrorCode.NONE,
            topic_id=topic_id,
            partitions=topic.count,
            replication_factor=len(first.replicas),
        )
        return self._assignments.records(topic_id, assignments, first_partition=existing), result

    def _assign(
        self, topic: NewPartitions, existing: int, first: PartitionImage
    ) -> Sequence[Replicas]:
        added, replication_factor = topic.count - existing, len(first.replicas)
        if topic.assignments is None:
            return self._assignments.place(added, replication_factor, first_partition=existing)
        if len(topic.assignments) != added:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but "
                f"{len(topic.assignments)} assignment(s) were specified.",
            )
        self._assignments.check(topic.assignments, replication_factor, first_partition=existing)
        return topic.assignments

    def _new_topic_id(self) -> TopicId:
        """Draw a version 4 UUID; its base64 text has no leading dash, and KRaft reserves none."""
        while True:
            drawn = bytearray(self._random_bytes(16))
            drawn[6] = drawn[6] & 0x0F | 0x40
            drawn[8] = drawn[8] & 0x3F | 0x80
            topic_id = TopicId(bytes(drawn))
            if topic_id[0] >> 2 != 62 and self._cluster.topic_name(topic_id) is None:
                return topic_id


def _count(asked: int, default: int, error_code: ErrorCode, what: str) -> int:
    if asked == -1:
        return default
    if asked <= 0:
        raise TopicRefused(error_code, f"{what} was set to an invalid non-positive value.")
    return asked


def _check_increase(topic: NewPartitions, existing: int) -> None:
    if topic.count == existing:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partition(s)."
        )
    if topic.count < existing:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {existing} partition(s); "
            f"{topic.count} would not be an increase.",
        )
