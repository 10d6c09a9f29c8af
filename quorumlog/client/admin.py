"""The asynchronous administrator: topics, configuration, the cluster, groups.

Each call asks until `default_api_timeout_ms` has passed, as long as trying again is harmless: a
question always, a change only while it is certain that nothing was done.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self, TypeVar, Unpack

from quorumlog.client import descriptions as about
from quorumlog.client.core.backoff import Backoff
from quorumlog.client.core.group_protocol import PROTOCOL_TYPE, decode_assignment
from quorumlog.client.core.metadata_cache import MetadataCache
from quorumlog.client.errors import DEFINITE, KafkaError, known
from quorumlog.client.io.cluster import QUESTION_TIMEOUT_MS, Cluster, check
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.client.settings import (
    AdminOptions,
    AdminSettings,
    BootstrapServers,
    build,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Request, ResponseT
from quorumlog.wire.codec.messages import create_topics as create_topics_
from quorumlog.wire.codec.messages import delete_topics as delete_topics_
from quorumlog.wire.codec.messages import describe_configs as describe_configs_
from quorumlog.wire.codec.messages.delete_groups import DeleteGroupsRequest
from quorumlog.wire.codec.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from quorumlog.wire.codec.messages.list_groups import ListGroupsRequest
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

ResourceKind = Literal["topic", "broker"]
RESOURCES: Final[Mapping[ResourceKind, int]] = {"topic": 2, "broker": 4}
Result = TypeVar("Result")


class Admin:
    """Administers a cluster: `async with Admin("host:port") as admin: ...`.

    The keyword arguments are those of AdminSettings. Every method raises KafkaError.
    """

    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[AdminOptions]
    ) -> None:
        self.settings: Final = build(AdminSettings, bootstrap_servers, options)
        self._cluster: Cluster | None = None

    async def start(self) -> None:
        """Find the cluster. Raises KafkaError (definite) if no broker answers."""
        cluster = Cluster(self.settings)
        await cluster.start()
        self._cluster = cluster

    async def stop(self) -> None:
        """Close the connections."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def _running(self) -> Cluster:
        if self._cluster is None:
            raise RuntimeError("the admin is not running: use `async with`, or start()")
        return self._cluster

    async def request(
        self,
        request: Request[ResponseT],
        *,
        broker_id: int | None = None,
        timeout_ms: float | None = None,
    ) -> ResponseT:
        """Send any request, once, to one broker (None: any), and return its answer unchecked."""
        cluster = self._running()
        if broker_id is None:
            broker_id = await cluster.any_broker()
        return await cluster.send(broker_id, request, timeout_ms=timeout_ms)

    async def _retry(self, attempt: Callable[[], Awaitable[Result]], *, changes: bool) -> Result:
        """Repeat `attempt` while that is harmless: not a change that may have been made."""
        cluster, settings = self._running(), self.settings
        backoff = Backoff(settings.metadata_retry_backoff_ms, settings.retry_backoff_max_ms)
        deadline_ms = cluster.now_ms() + settings.default_api_timeout_ms
        failures = 0
        while True:
            try:
                async with asyncio.timeout(max(deadline_ms - cluster.now_ms(), 0) / 1000):
                    return await attempt()
            except TimeoutError:
                message = f"no answer within {settings.default_api_timeout_ms} ms"
                definite = not changes
                code = ErrorCode.REQUEST_TIMED_OUT
                raise KafkaError(code, message, definite=definite) from None
            except KafkaError as error:
                failures += 1
                # Not for cryptography: it spreads retries.
                delay_ms = backoff.delay_ms(failures, random.random())  # noqa: S311
                is_passing = error.retriable or error.code == ErrorCode.BROKER_NOT_AVAILABLE
                is_late = cluster.now_ms() + delay_ms >= deadline_ms
                if not is_passing or is_late or (changes and not error.definite):
                    raise
                await asyncio.sleep(delay_ms / 1000)

    # --- topics ----------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Iterable[about.NewTopic], *, validate_only: bool = False
    ) -> None:
        """Create topics. Raises the first topic's error, definite if none was created."""
        wanted = list(topics)
        request = create_topics_.CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=self.settings.request_timeout_ms,
            validate_only=validate_only,
        )

        async def attempt() -> None:
            results = (await self.request(request)).topics
            answers = {one.name: (one.error_code, one.error_message or "") for one in results}
            _check_all([topic.name for topic in wanted], answers)

        await self._retry(attempt, changes=True)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics. Raises the first topic's error, definite if none was deleted."""
        wanted = _names(names)
        request = delete_topics_.DeleteTopicsRequest(
            topic_names=wanted,
            topics=[delete_topics_.DeleteTopicState(name=name) for name in wanted],
            timeout_ms=self.settings.request_timeout_ms,
        )

        async def attempt() -> None:
            results = (await self.request(request)).responses
            answers = {one.name or "": (one.error_code, one.error_message or "") for one in results}
            _check_all(wanted, answers)

        await self._retry(attempt, changes=True)

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        topics = (await self._metadata(None)).topics
        return sorted(
            topic.name
            for topic in topics
            if topic.name and (include_internal or not topic.is_internal)
        )

    async def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> dict[str, about.TopicDescription]:
        """Describe topics, None: all. UNKNOWN_TOPIC_OR_PARTITION for one that is not there."""
        response = await self._metadata(names)
        for topic in response.topics:
            if known(topic.error_code) != ErrorCode.LEADER_NOT_AVAILABLE:
                check(topic.error_code, topic.name or "")
        view = MetadataCache()
        view.update(0, response)
        return {
            name: about.TopicDescription(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=topic.partitions,
            )
            for name, topic in sorted(view.topics.items())
        }

    async def describe_cluster(self) -> about.ClusterDescription:
        """Describe the cluster as one broker sees it now."""
        view = MetadataCache()
        view.update(0, await self._metadata(()))
        return about.ClusterDescription(
            cluster_id=view.cluster_id, controller_id=view.controller_id, nodes=view.nodes
        )

    async def _metadata(self, names: Iterable[str] | None) -> MetadataResponse:
        topics = None
        if names is not None:
            topics = [MetadataRequestTopic(name=name) for name in _names(names)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        ask = partial(self.request, request, timeout_ms=QUESTION_TIMEOUT_MS)
        return await self._retry(ask, changes=False)

    # --- configuration ---------------------------------------------------------------------------

    async def describe_configs(self, kind: ResourceKind, name: str) -> dict[str, about.ConfigValue]:
        """Return the settings of a topic (by name) or broker (by id, as text)."""
        resource = describe_configs_.DescribeConfigsResource(
            resource_type=RESOURCES[kind], resource_name=name, configuration_keys=None
        )
        request = describe_configs_.DescribeConfigsRequest(resources=[resource])
        broker_id = int(name) if kind == "broker" else None

        async def attempt() -> dict[str, about.ConfigValue]:
            found = {}
            for result in (await self.request(request, broker_id=broker_id)).results:
                check(result.error_code, f"{name}: {result.error_message or ''}")
                for one in result.configs:
                    found[one.name] = about.ConfigValue(
                        value=one.value,
                        source=one.config_source,
                        is_read_only=one.read_only,
                        is_sensitive=one.is_sensitive,
                    )
            return found

        return await self._retry(attempt, changes=False)

    # --- groups ----------------------------------------------------------------------------------

    async def list_consumer_groups(self) -> list[about.GroupListing]:
        """Ask every broker for the groups that it coordinates; sorted by name."""
        brokers = (await self.describe_cluster()).nodes
        found = {}
        for broker_id in brokers:
            ask = partial(self.request, ListGroupsRequest(), broker_id=broker_id)
            response = await self._retry(ask, changes=False)
            check(response.error_code)
            for one in response.groups:
                found[one.group_id] = about.GroupListing(
                    group_id=one.group_id,
                    protocol_type=one.protocol_type,
                    state=one.group_state,
                    group_type=one.group_type,
                )
        return [found[name] for name in sorted(found)]

    async def describe_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, about.GroupDescription]:
        """Describe classic groups; one that does not exist is described as "Dead"."""
        return {name: await self._describe_group(name) for name in _names(group_ids)}

    async def _describe_group(self, group_id: str) -> about.GroupDescription:
        coordinator = Coordinator(self._running(), group_id)

        async def attempt() -> about.GroupDescription:
            request = DescribeGroupsRequest(groups=[group_id])
            try:
                group = (await coordinator.send(request)).groups[0]
                if known(group.error_code) != ErrorCode.GROUP_ID_NOT_FOUND:
                    check(group.error_code, group_id)
            except KafkaError:
                coordinator.forget()
                raise
            return _described(group, coordinator.broker_id)

        return await self._retry(attempt, changes=False)

    async def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed, None: for all its partitions."""
        coordinator = Coordinator(self._running(), group_id)
        wanted = None if partitions is None else list(partitions)
        return await coordinator.committed(wanted, self.settings.default_api_timeout_ms)

    async def delete_consumer_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, with their offsets. Raises NON_EMPTY_GROUP and others.

        One after the other; an error is definite if none was deleted.
        """
        for position, group_id in enumerate(_names(group_ids)):
            coordinator = Coordinator(self._running(), group_id)
            try:
                await self._retry(partial(_delete_group, coordinator), changes=True)
            except KafkaError as error:
                definite = error.definite and position == 0
                raise KafkaError(error.code, error.message, definite=definite) from error


def _names(names: Iterable[str]) -> list[str]:
    """Take a list of names; one alone would be taken for its letters."""
    if isinstance(names, str):
        raise TypeError(f"a list of names is wanted: [{names!r}]")
    return list(names)


def _check_all(names: Iterable[str], answers: Mapping[str, tuple[int, str]]) -> None:
    """Raise the first error of (code, message) by name; definite if nothing at all was done."""
    missing = int(ErrorCode.UNKNOWN_SERVER_ERROR), "left out of the answer"
    found = {name: answers.get(name, missing) for name in names}
    is_definite = all(known(code) in DEFINITE for code, _ in found.values())
    for name, (code, message) in found.items():
        if code != ErrorCode.NONE:
            raise KafkaError(code, f"{name}: {message}".removesuffix(": "), definite=is_definite)


async def _delete_group(coordinator: Coordinator) -> None:
    request = DeleteGroupsRequest(groups_names=[coordinator.group_id])
    for one in (await coordinator.send(request)).results:
        check(one.error_code, one.group_id)


def _creatable(topic: about.NewTopic) -> create_topics_.CreatableTopic:
    return create_topics_.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            create_topics_.CreatableReplicaAssignment(
                partition_index=index, broker_ids=list(replicas)
            )
            for index, replicas in topic.assignments.items()
        ],
        configs=[
            create_topics_.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def _described(group: DescribedGroup, coordinator_id: int | None) -> about.GroupDescription:
    is_consumer = group.protocol_type == PROTOCOL_TYPE
    members = tuple(
        about.MemberDescription(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=decode_assignment(member.member_assignment) if is_consumer else (),
        )
        for member in group.members
    )
    return about.GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=group.protocol_type,
        protocol=group.protocol_data,
        coordinator_id=-1 if coordinator_id is None else coordinator_id,
        members=members,
    )
