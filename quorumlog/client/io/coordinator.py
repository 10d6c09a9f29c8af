"""The coordinator of a group: the search for its broker, and its committed offsets."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction
from quorumlog.client.core.absences import listed
from quorumlog.client.core.metadata_cache import Node
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.core.transaction_requests import CoordinatorType
from quorumlog.client.core.waits import Wait
from quorumlog.client.errors import DEFINITE, DENIED, KafkaError, answered, denied
from quorumlog.client.io.cluster import (
    QUESTION_TIMEOUT_MS,
    UNKNOWN_TOPIC_MS,
    Cluster,
    Purpose,
    check,
)
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode, known
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.message import Request, ResponseT
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseTopics,
)


async def find_coordinator(cluster: Cluster, kind: CoordinatorType, key: str) -> int:
    """Return the coordinator's broker id, after connecting to it. Raises KafkaError."""
    request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
    response = await cluster.send(None, request, timeout_ms=QUESTION_TIMEOUT_MS)
    if response.coordinators:
        found = response.coordinators[0]
        _check_found(cluster, found.error_code, found.error_message, kind, key)
        node = Node(found.node_id, found.host, found.port)
    else:
        _check_found(cluster, response.error_code, response.error_message, kind, key)
        node = Node(response.node_id, response.host, response.port)
    cluster.metadata.nodes.setdefault(node.broker_id, node)
    await cluster.connect(node.broker_id, Purpose.GROUP)
    return node.broker_id


def _check_found(
    cluster: Cluster, code: int, message: str | None, kind: CoordinatorType, key: str
) -> None:
    if code != ErrorCode.NONE:
        is_group = kind == CoordinatorType.GROUP
        name, right = ("group", "READ") if is_group else ("transactional id", "WRITE")
        right = "DESCRIBE" if cluster.topic_right == "DESCRIBE" else right
        resource = f"{name} {key}"
        raise answered(code, denied(code, resource, right) if code in DENIED else message or "")


_logger: Final = logging.getLogger(__name__)

NAMED_TOPICS_MAX: Final = 9  # later versions of OffsetCommit and OffsetFetch have topic ids
_NO_TOPIC_IDS: Final[Mapping[str, bytes]] = {}
_UNKNOWN_TOPIC: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
_MOVED: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Coordinator:
    """The coordinator of one group, found again whenever it moves."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        *,
        instance_id: str | None = None,
        require_stable: bool = False,
    ) -> None:
        """`require_stable`: OffsetFetch is retried while transactions have pending offsets."""
        self.group_id: Final = group_id
        self._cluster: Final = cluster
        self._instance_id: Final = instance_id
        self._require_stable: Final = require_stable
        settings = cluster.settings
        self._backoff: Final = Backoff(
            settings.metadata_retry_backoff_ms, settings.metadata_retry_backoff_max_ms
        )
        self.broker_id: int | None = None

    # --- search and requests ---

    async def find(self) -> None:
        """Find the coordinator and connect, with retries. Raises KafkaError for a lasting error."""
        failures, subject = 0, f"the coordinator of group {self.group_id}"
        with self._cluster.lookout.waiting(subject, over="found") as wait:
            while True:
                try:
                    self.broker_id = await find_coordinator(
                        self._cluster, CoordinatorType.GROUP, self.group_id
                    )
                    return
                except KafkaError as error:
                    if not error.passing:
                        raise
                    wait.fail(error, about=subject)
                    _logger.debug("coordinator of %s: %s", self.group_id, error)
                failures += 1
                delay_ms = self._backoff.delay_ms(failures, random_fraction())
                await asyncio.sleep(delay_ms / 1000)

    def mark_unknown(self) -> None:
        """Drop the broker: the next request finds the coordinator first."""
        self.broker_id = None

    @property
    def is_known(self) -> bool:
        """True if a request needs no search first."""
        return self.broker_id is not None

    @property
    def is_lost(self) -> bool:
        """True if the connection to the last known coordinator broke."""
        return self.broker_id is not None and self._cluster.is_failing(
            self.broker_id, Purpose.GROUP
        )

    async def send(
        self,
        request: Request[ResponseT],
        *,
        version_max: int | None = None,
        timeout_ms: float | None = None,
        expected_ms: float = 0,
    ) -> ResponseT:
        """Send one request, after finding the coordinator if needed. Raises KafkaError.

        `expected_ms`: how long the coordinator may wait for other members.
        """
        if self.broker_id is None:
            await self.find()
        broker_id = self.broker_id
        if broker_id is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self.group_id, definite=True)
        return await self._cluster.send(
            broker_id,
            request,
            purpose=Purpose.GROUP,
            version_max=version_max,
            timeout_ms=timeout_ms,
            expected_ms=expected_ms,
        )

    # --- offsets ---

    async def commit(
        self,
        offsets: Offsets,
        member_id: str,
        generation_id: int,
        timeout_ms: float,
        topic_ids: Mapping[str, bytes] = _NO_TOPIC_IDS,
    ) -> None:
        """Commit, with retries for `timeout_ms`. Raises KafkaError; definite if not committed.

        topic_ids: of the offsets' topics, by name. If one id is missing, the request has topic
        names instead of ids (as always before KAFKA-14690).
        UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID count as final after `UNKNOWN_TOPIC_MS`;
        UNKNOWN_TOPIC_ID at once if the metadata has another id for the name.
        """
        topics = []
        for topic, partitions in by_topic(offsets).items():
            entries = [_entry(index, offsets[TopicPartition(topic, index)]) for index in partitions]
            topic_id = topic_ids.get(topic, ZERO_TOPIC_ID)
            topics.append(
                OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=entries)
            )
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=self._instance_id if member_id else None,
            topics=topics,
        )
        with self._cluster.lookout.waiting() as wait:
            await self._commit_by(request, timeout_ms, wait)

    async def _commit_by(self, request: OffsetCommitRequest, timeout_ms: float, wait: Wait) -> None:
        began_ms = self._cluster.now_ms()
        deadline_ms = began_ms + timeout_ms
        was_definite, failures = True, 0
        while True:
            error = await self._commit_in_time(request, deadline_ms)
            if error is None:
                return
            was_definite = was_definite and error.definite
            failures += 1
            delay_ms = self._backoff.delay_ms(failures, random_fraction())
            is_unknown = error.code in _UNKNOWN_TOPIC
            if error.code == ErrorCode.UNKNOWN_TOPIC_ID:
                self._cluster.request_update()
                if self._has_successor(request):
                    raise KafkaError(error.code, error.message, definite=was_definite)
            end_ms = min(deadline_ms, began_ms + UNKNOWN_TOPIC_MS) if is_unknown else deadline_ms
            is_late = self._cluster.now_ms() + delay_ms >= end_ms
            if is_late or not (error.retriable or error.code in _MOVED):
                raise KafkaError(error.code, error.message, definite=was_definite)
            wait.fail(error)
            if error.code in _MOVED:
                self.mark_unknown()
            await asyncio.sleep(delay_ms / 1000)

    def _has_successor(self, request: OffsetCommitRequest) -> bool:
        """Return whether a topic of the request was re-created: the metadata has another id."""
        names = self._cluster.metadata.topic_id
        return any(
            names(topic.name) not in {topic.topic_id, ZERO_TOPIC_ID} for topic in request.topics
        )

    async def _commit_in_time(
        self, request: OffsetCommitRequest, deadline_ms: float
    ) -> KafkaError | None:
        try:
            async with asyncio.timeout(max(deadline_ms - self._cluster.now_ms(), 0) / 1000):
                return await self._commit_once(request)
        except TimeoutError:
            message = f"group {self.group_id}: no answer to a commit in time"
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=False)

    async def _commit_once(self, request: OffsetCommitRequest) -> KafkaError | None:
        ids = {topic.topic_id: topic.name for topic in request.topics}
        try:
            response = await self.send(request, version_max=_version_max(ids))
        except KafkaError as error:
            return error
        codes = {
            TopicPartition(topic.name or ids.get(topic.topic_id, ""), one.partition_index): known(
                one.error_code
            )
            for topic in response.topics
            for one in topic.partitions
        }
        return commit_error(self.group_id, codes)

    async def committed(
        self,
        partitions: Collection[TopicPartition] | None,
        timeout_ms: float,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of `partitions`, None: of all that have one.

        Partitions without a committed offset are left out. topic_ids: by name; None: the request
        has topic names only.
        Raises KafkaError; UNKNOWN_TOPIC_ID at once, because the topic may be a re-created one.
        """
        ids = _NO_TOPIC_IDS if topic_ids is None else topic_ids
        with self._cluster.lookout.waiting() as wait:
            return await self._committed_by(partitions, timeout_ms, ids, wait)

    async def _committed_by(
        self,
        partitions: Collection[TopicPartition] | None,
        timeout_ms: float,
        topic_ids: Mapping[str, bytes],
        wait: Wait,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        failures = 0
        deadline_ms = self._cluster.now_ms() + timeout_ms
        while True:
            try:
                async with asyncio.timeout(max(deadline_ms - self._cluster.now_ms(), 0) / 1000):
                    return await self._committed_once(partitions, topic_ids)
            except TimeoutError:
                message = f"group {self.group_id}: no committed offsets in {timeout_ms:g} ms"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=True) from None
            except KafkaError as error:
                failures += 1
                delay_ms = self._backoff.delay_ms(failures, random_fraction())
                is_late = self._cluster.now_ms() + delay_ms >= deadline_ms
                if error.code == ErrorCode.UNKNOWN_TOPIC_ID:
                    self._cluster.request_update()
                    raise
                if is_late or not (error.retriable or error.code in _MOVED):
                    raise
                wait.fail(error)
                if error.code in _MOVED:
                    self.mark_unknown()
            await asyncio.sleep(delay_ms / 1000)

    async def _committed_once(
        self, partitions: Collection[TopicPartition] | None, topic_ids: Mapping[str, bytes]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        ids: dict[bytes, str] = {}
        old: list[OffsetFetchRequestTopic] | None = None
        new: list[OffsetFetchRequestTopics] | None = None
        if partitions is not None:
            named = by_topic(partitions)
            old = [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in named.items()]
            ids = {topic_ids.get(name, ZERO_TOPIC_ID): name for name in named}
            new = [
                OffsetFetchRequestTopics(
                    name=name,
                    topic_id=topic_ids.get(name, ZERO_TOPIC_ID),
                    partition_indexes=indexes,
                )
                for name, indexes in named.items()
            ]
        request = OffsetFetchRequest(
            group_id=self.group_id,
            topics=old,
            groups=[OffsetFetchRequestGroup(group_id=self.group_id, topics=new)],
            require_stable=self._require_stable,
        )
        version_max = NAMED_TOPICS_MAX if partitions is None else _version_max(ids)
        response = await self.send(request, version_max=version_max)
        return read_committed_offsets(self.group_id, response, ids)


def _version_max(topic_ids: Collection[bytes]) -> int | None:
    """Return the last version with topic names if a topic id is missing; else None: any."""
    return NAMED_TOPICS_MAX if ZERO_TOPIC_ID in topic_ids else None


def commit_error(group_id: str, codes: Mapping[TopicPartition, ErrorCode]) -> KafkaError | None:
    """Return a commit's gravest error, None if there is none; definite if all errors are."""
    failed = {name: code for name, code in codes.items() if code != ErrorCode.NONE}
    if not failed:
        return None
    worst = min(failed.values(), key=lambda code: code in RETRIABLE)  # lasting errors first
    names = listed(name for name, code in failed.items() if code == worst)
    message = f"group {group_id}: the offset of {names} is not committed"
    if worst in DENIED:
        is_group = worst == ErrorCode.GROUP_AUTHORIZATION_FAILED
        message += f": {denied(worst, f'group {group_id}' if is_group else names, 'READ')}"
    return KafkaError(worst, message, definite={*codes.values()} <= DEFINITE)


def read_committed_offsets(
    group_id: str, response: OffsetFetchResponse, names: Mapping[bytes, str]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of an OffsetFetch response; `names` by topic id. Raises KafkaError."""
    group = response.groups[0] if response.groups else response
    check(group.error_code, denied(group.error_code, f"group {group_id}", "READ"))
    found = {}
    for topic in group.topics:
        by_id = topic.topic_id if isinstance(topic, OffsetFetchResponseTopics) else ZERO_TOPIC_ID
        name = topic.name or names.get(by_id, "")
        for one in topic.partitions:
            check(one.error_code, denied(one.error_code, f"topic {name!r}", "READ"))
            if one.committed_offset >= 0:
                place = OffsetAndMetadata(
                    one.committed_offset, one.committed_leader_epoch, one.metadata or ""
                )
                found[TopicPartition(name, one.partition_index)] = place
    return found


def _entry(index: int, place: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=place.offset,
        committed_leader_epoch=place.leader_epoch,
        committed_metadata=place.metadata,
    )
