"""Topics: created, grown, described, deleted; and leader elections."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, get_args

from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker
from quorumlog.client.admin.configs import as_text
from quorumlog.client.checks import (
    checked_all,
    checked_mapping,
    checked_names,
    checked_number,
    checked_partitions,
)
from quorumlog.client.core.metadata_cache import MetadataCache, PartitionView
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.descriptions import Election
from quorumlog.client.errors import KafkaError, answered
from quorumlog.client.io.cluster import QUESTION_TIMEOUT_MS, check, labelled
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages import create_partitions as create_partitions_
from quorumlog.wire.codec.messages import create_topics as create_topics_
from quorumlog.wire.codec.messages import delete_topics as delete_topics_
from quorumlog.wire.codec.messages import describe_topic_partitions as describe_
from quorumlog.wire.codec.messages import elect_leaders as elect_leaders_
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from quorumlog.wire.codec.topic_names import topic_name_error

_ELECTIONS: Final[Mapping[Election, int]] = {"preferred": 0, "unclean": 1}
PAGE_PARTITIONS: Final = 2_000  # per DescribeTopicPartitions response, as in Kafka's client


async def create(asker: Asker, topics: Iterable[about.NewTopic], *, validate_only: bool) -> None:
    """See Admin.create_topics."""
    wanted = checked_all(topics, about.NewTopic, "NewTopic")
    request = create_topics_.CreateTopicsRequest(
        topics=[_creatable(topic) for topic in wanted],
        timeout_ms=asker.settings.request_timeout_ms,
        validate_only=validate_only,
    )

    names = [topic.name for topic in wanted]
    await asker.change_each(request, names, lambda found: {one.name: one for one in found.topics})


def _creatable(topic: about.NewTopic) -> create_topics_.CreatableTopic:
    return create_topics_.CreatableTopic(
        name=topic.name,
        num_partitions=checked_number(topic.num_partitions, "num_partitions"),
        replication_factor=checked_number(topic.replication_factor, "replication_factor"),
        assignments=[
            create_topics_.CreatableReplicaAssignment(
                partition_index=checked_number(index, "a partition"),
                broker_ids=checked_all(replicas, int, "broker ids"),
            )
            for index, replicas in topic.assignments.items()
        ],
        configs=[
            create_topics_.CreatableTopicConfig(name=name, value=as_text(name, value))
            for name, value in topic.configs.items()
        ],
    )


async def delete(asker: Asker, names: Iterable[str]) -> None:
    """See Admin.delete_topics."""
    wanted = checked_names(names)
    request = delete_topics_.DeleteTopicsRequest(
        topic_names=wanted,
        topics=[delete_topics_.DeleteTopicState(name=name) for name in wanted],
        timeout_ms=asker.settings.request_timeout_ms,
    )

    await asker.change_each(
        request, wanted, lambda found: {one.name or "": one for one in found.responses}
    )


async def grow(
    asker: Asker, counts: Mapping[str, int | about.NewPartitions], *, validate_only: bool
) -> None:
    """See Admin.create_partitions."""
    topics = []
    for name, wanted in checked_mapping(counts, "topic to number of partitions").items():
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            wanted = about.NewPartitions(wanted)  # noqa: PLW2901 - the same, spelt out
        if not isinstance(wanted, about.NewPartitions):
            raise TypeError(f"{name}: must be an int or NewPartitions, not {wanted!r}")
        assignments = None
        if wanted.assignments:
            assignments = [
                create_partitions_.CreatePartitionsAssignment(
                    broker_ids=checked_all(replicas, int, "broker ids")
                )
                for replicas in wanted.assignments
            ]
        topics.append(
            create_partitions_.CreatePartitionsTopic(
                name=name,
                count=checked_number(wanted.total_count, "total_count"),
                assignments=assignments,
            )
        )
    request = create_partitions_.CreatePartitionsRequest(
        topics=topics, timeout_ms=asker.settings.request_timeout_ms, validate_only=validate_only
    )

    await asker.change_each(request, counts, lambda found: {one.name: one for one in found.results})


async def metadata(asker: Asker, names: Iterable[str] | None) -> MetadataResponse:
    """Return a broker's metadata response for these topics; None: for all topics."""
    topics = None
    if names is not None:
        topics = [MetadataRequestTopic(name=name) for name in checked_names(names)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    ask = partial(asker.request, request, timeout_ms=QUESTION_TIMEOUT_MS)
    return await asker.retry(ask, changes=False)


async def view(asker: Asker, names: Iterable[str] | None) -> MetadataCache:
    """Return a broker's metadata of the cluster and of these topics; None: of all topics.

    Raises the first topic's error, except LEADER_NOT_AVAILABLE.
    """
    response = await metadata(asker, names)
    for topic in response.topics:
        if known(topic.error_code) != ErrorCode.LEADER_NOT_AVAILABLE:
            name = topic.name or ""
            check(topic.error_code, topic_name_error(name) or name)
    found = MetadataCache()
    found.update(response)
    return found


async def describe(asker: Asker, names: Iterable[str] | None) -> dict[str, about.TopicDescription]:
    """See Admin.describe_topics. Named topics have the ELR, if the broker supports KIP-966."""
    if names is not None:
        wanted = checked_names(names)
        try:
            return await _describe_with_elr(asker, wanted)
        except KafkaError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
        names = wanted
    return {
        name: about.TopicDescription(
            name=name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=topic.partitions,
        )
        for name, topic in sorted((await view(asker, names)).topics.items())
    }


async def _describe_with_elr(asker: Asker, names: list[str]) -> dict[str, about.TopicDescription]:
    """Request the descriptions page by page. Raises UNSUPPORTED_VERSION before KIP-966."""
    described: dict[str, about.TopicDescription] = {}
    partitions: dict[str, dict[int, PartitionView]] = {}
    cursor: describe_.RequestCursor | None = None
    wanted = [describe_.TopicRequest(name=name) for name in sorted({*names})]
    while wanted:
        request = describe_.DescribeTopicPartitionsRequest(
            topics=wanted, response_partition_limit=PAGE_PARTITIONS, cursor=cursor
        )
        ask = partial(asker.request, request, timeout_ms=QUESTION_TIMEOUT_MS)
        page = await asker.retry(ask, changes=False)
        for topic in page.topics:
            name = topic.name or ""
            check(topic.error_code, topic_name_error(name) or name)
            found = partitions.setdefault(name, {})
            found.update((one.partition_index, _view(one)) for one in topic.partitions)
            described[name] = about.TopicDescription(
                name=name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=found
            )
        end = page.next_cursor
        if end is None:
            break
        place = (end.topic_name, end.partition_index)
        if cursor is not None and place <= (cursor.topic_name, cursor.partition_index):
            message = f"DescribeTopicPartitions does not get past {place}"
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message, definite=True)
        cursor = describe_.RequestCursor(topic_name=place[0], partition_index=place[1])
        wanted = [one for one in wanted if one.name >= place[0]]
    return described


def _view(one: describe_.DescribeTopicPartitionsResponsePartition) -> PartitionView:
    elr, last_known = one.eligible_leader_replicas, one.last_known_elr
    return PartitionView(
        leader_id=one.leader_id,
        leader_epoch=one.leader_epoch,
        replicas=tuple(one.replica_nodes),
        isr=tuple(one.isr_nodes),
        offline=tuple(one.offline_replicas),
        elr=None if elr is None else tuple(elr),
        last_known_elr=None if last_known is None else tuple(last_known),
    )


async def elect(
    asker: Asker, partitions: Iterable[TopicPartition] | None, election: Election
) -> dict[TopicPartition, KafkaError | None]:
    """See Admin.elect_leaders."""
    if election not in _ELECTIONS:
        choices = " or ".join(repr(one) for one in get_args(Election))
        raise ValueError(f"election is {choices}, not {election!r}")
    wanted = None if partitions is None else checked_partitions(partitions)
    topics = None
    if wanted is not None:
        topics = [
            elect_leaders_.TopicPartitions(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(wanted).items()
        ]
    request = elect_leaders_.ElectLeadersRequest(
        election_type=_ELECTIONS[election],
        topic_partitions=topics,
        timeout_ms=asker.settings.request_timeout_ms,
    )
    outcomes: dict[TopicPartition, KafkaError | None] = {}
    for topic in (await asker.ask(request, changes=True)).replica_election_results:
        for one in topic.partition_result:
            name = TopicPartition(topic.topic, one.partition_id)
            error = None
            if one.error_code != ErrorCode.NONE:
                error = answered(one.error_code, labelled(name, one.error_message))
            outcomes[name] = error
    return outcomes
