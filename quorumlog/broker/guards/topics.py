"""Guards of topics: Metadata, descriptions, creation, growth and deletion; and configurations.

A topic that the client may not describe is TOPIC_AUTHORIZATION_FAILED whether it exists or not, and
is left out of lists.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from quorumlog.broker.guards.guard import (
    Access,
    Asked,
    adding,
    amended,
    changed,
    described,
    divided,
    name_at,
)
from quorumlog.broker.responses.cluster_view import ALL_OF_TOPIC, metadata_response
from quorumlog.broker.responses.config_entries import ResourceType
from quorumlog.broker.server.api import Reply
from quorumlog.metadata_quorum.image.acls import CLUSTER_NAME, AclOperation, AclResourceType
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID
from quorumlog.wire.codec.messages.alter_configs import AlterConfigsResourceResponse
from quorumlog.wire.codec.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopicResult,
)
from quorumlog.wire.codec.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from quorumlog.wire.codec.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResult,
)
from quorumlog.wire.codec.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
METADATA_BY_ID_SINCE: Final = 12
DELETE_BY_ID_SINCE: Final = 6
NO_CLUSTER_OPERATIONS: Final = 0  # the field of a client that may not describe the cluster


def guard_metadata(asked: Asked[MetadataRequest]) -> Reply:
    """Require DESCRIBE of each topic, and CREATE of a topic that the request would create."""
    request = asked.request
    if request.topics is None or (asked.version == 0 and not request.topics):
        return amended(asked.pass_on(), lambda response: _listed(asked, response))
    permitted, refused = divided(request.topics, lambda topic: _may_describe(asked, topic))
    results = [
        MetadataResponseTopic(
            error_code=REFUSED,
            name=topic.name if topic.topic_id == ZERO_TOPIC_ID else None,
            topic_id=topic.topic_id,
        )
        for topic in refused
    ]
    if request.allow_auto_topic_creation and asked.context.settings.auto_create_topics_enable:
        permitted, uncreatable = divided(permitted, lambda topic: _may_create(asked, topic))
        results += [MetadataResponseTopic(error_code=REFUSED, name=one.name) for one in uncreatable]

    def amend(response: MetadataResponse) -> MetadataResponse:
        _limit_operations(asked, response)
        response.topics = [*response.topics, *results]
        return response

    if results and not permitted:  # an empty list would mean all topics in version 0
        return amend(metadata_response(asked.context, asked.header, request, []))
    return amended(asked.forward(changed(request, topics=permitted)), amend)


def _may_describe(asked: Asked[MetadataRequest], topic: MetadataRequestTopic) -> bool:
    name = topic.name
    if topic.topic_id != ZERO_TOPIC_ID:
        if asked.version < METADATA_BY_ID_SINCE:
            return True  # the handler refuses the whole request
        name = name_at(asked, topic.topic_id)
    return name is None or asked.access.may_topic(AclOperation.DESCRIBE, name)


def _may_create(asked: Asked[MetadataRequest], topic: MetadataRequestTopic) -> bool:
    """Whether the topic exists, or the client may create it."""
    if topic.topic_id != ZERO_TOPIC_ID or topic.name is None:
        return True
    if topic.name in asked.context.image.topics:
        return True
    return asked.access.may_cluster(
        AclOperation.CREATE, log_denied=False
    ) or asked.access.may_topic(AclOperation.CREATE, topic.name)


def _listed(asked: Asked[MetadataRequest], response: MetadataResponse) -> MetadataResponse:
    response.topics = [
        topic for topic in response.topics if _is_visible(asked.access, topic.name or "")
    ]
    _limit_operations(asked, response)
    return response


def _is_visible(access: Access, name: str) -> bool:
    return access.may_topic(AclOperation.DESCRIBE, name, log_denied=False)


def _limit_operations(asked: Asked[MetadataRequest], response: MetadataResponse) -> None:
    """Replace the bit fields of all operations by those of the client's operations."""
    limit_operations(asked.access, response.topics)
    if asked.request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(asked.access)


def limit_operations(
    access: Access,
    topics: Iterable[MetadataResponseTopic] | Iterable[DescribeTopicPartitionsResponseTopic],
) -> None:
    """Replace the bit fields that the handler has set by those of the client's operations."""
    for topic in topics:
        if topic.topic_authorized_operations == ALL_OF_TOPIC:
            topic.topic_authorized_operations = access.operations(
                AclResourceType.TOPIC, topic.name or ""
            )


def cluster_operations(access: Access) -> int:
    """Return the client's operations on the cluster; none unless it may describe it."""
    if not access.may_cluster(AclOperation.DESCRIBE):
        return NO_CLUSTER_OPERATIONS
    return access.operations(AclResourceType.CLUSTER, CLUSTER_NAME)


def guard_describe_topic_partitions(asked: Asked[DescribeTopicPartitionsRequest]) -> Reply:
    """Require DESCRIBE of each topic; without topics: describe the permitted topics.

    The handler gets the names of a page that may begin in a forbidden topic, whose name would
    otherwise be in the cursor.
    """
    request, access = asked.request, asked.access
    cursor = request.cursor
    first = "" if cursor is None else cursor.topic_name
    results: list[DescribeTopicPartitionsResponseTopic] = []
    if request.topics:
        permitted, refused = divided(
            request.topics, lambda one: access.may_topic(AclOperation.DESCRIBE, one.name)
        )
        results = [
            DescribeTopicPartitionsResponseTopic(error_code=REFUSED, name=one.name)
            for one in refused
        ]
    else:
        permitted = _page(asked, first)
    if cursor is not None and first not in {one.name for one in permitted}:
        is_asked = first in {one.name for one in request.topics} or not request.topics
        if is_asked and cursor.partition_index >= 0:
            permitted = [one for one in permitted if one.name >= first]
            cursor = None

    def amend(response: DescribeTopicPartitionsResponse) -> DescribeTopicPartitionsResponse:
        limit_operations(access, response.topics)
        response.topics = [*response.topics, *results]
        return response

    if not permitted:  # an empty list would mean all topics
        return amend(DescribeTopicPartitionsResponse())
    return amended(asked.forward(changed(request, topics=permitted, cursor=cursor)), amend)


def _page(asked: Asked[DescribeTopicPartitionsRequest], first: str) -> list[TopicRequest]:
    """Return the permitted topics of one page, from `first` on, and the start of the next page.

    Each topic has at least one partition.
    """
    limit = asked.context.settings.max_request_partition_size_limit
    limit = max(min(limit, asked.request.response_partition_limit), 1)
    names = sorted(name for name in asked.context.image.topics if name >= first)
    visible = (name for name in names if _is_visible(asked.access, name))
    return [TopicRequest(name=name) for name in islice(visible, limit + 2)]


def guard_create_topics(asked: Asked[CreateTopicsRequest]) -> Reply:
    """Require CREATE of the cluster or of each topic; show configurations by DESCRIBE_CONFIGS."""
    access = asked.access
    permitted, refused = asked.request.topics, list[CreatableTopic]()
    if not access.may_cluster(AclOperation.CREATE, log_denied=False):
        permitted, refused = divided(
            permitted, lambda one: access.may_topic(AclOperation.CREATE, one.name)
        )
    results = [
        CreatableTopicResult(
            name=name, error_code=REFUSED, error_message="Authorization failed.", configs=[]
        )
        for name in dict.fromkeys(one.name for one in refused)
    ]

    def amend(response: CreateTopicsResponse) -> CreateTopicsResponse:
        for topic in response.topics:
            is_created = topic.error_code == ErrorCode.NONE
            if is_created and not access.may_topic(
                AclOperation.DESCRIBE_CONFIGS, topic.name, log_denied=False
            ):
                topic.topic_config_error_code = REFUSED
                topic.num_partitions = topic.replication_factor = -1
                topic.configs = []
        response.topics = [*response.topics, *results]
        return response

    return amended(asked.forward(changed(asked.request, topics=permitted)), amend)


def guard_create_partitions(asked: Asked[CreatePartitionsRequest]) -> Reply:
    """Require ALTER of each topic."""
    permitted, refused = divided(
        asked.request.topics, lambda one: asked.access.may_topic(AclOperation.ALTER, one.name)
    )
    results = [CreatePartitionsTopicResult(name=one.name, error_code=REFUSED) for one in refused]
    return adding(asked.forward(changed(asked.request, topics=permitted)), results=results)


def guard_delete_topics(asked: Asked[DeleteTopicsRequest]) -> Reply:
    """Require DELETE of the cluster or of each topic; DESCRIBE decides how much is revealed.

    A topic that this broker's image lacks is passed on only for a client that may delete it: the
    controller may have it already.
    """
    if asked.access.may_cluster(AclOperation.DELETE, log_denied=False):
        return asked.pass_on()
    by_id = asked.version >= DELETE_BY_ID_SINCE
    request = asked.request
    topics = (
        request.topics if by_id else [DeleteTopicState(name=one) for one in request.topic_names]
    )
    verdicts = [(topic, _deletion_error(asked, topic)) for topic in topics]
    permitted = [topic for topic, result in verdicts if result is None]
    results = [result for _, result in verdicts if result is not None]
    if by_id:
        part = changed(request, topics=permitted)
    else:
        part = changed(request, topic_names=[topic.name for topic in permitted])
    return adding(asked.forward(part), responses=results)


def _deletion_error(
    asked: Asked[DeleteTopicsRequest], topic: DeleteTopicState
) -> DeletableTopicResult | None:
    """Return the refusal of a topic; None: the handler gets it."""
    access, image = asked.access, asked.context.image
    has_id = topic.topic_id != ZERO_TOPIC_ID
    if has_id == (topic.name is not None):
        return None  # the handler refuses it: it is named twice, or not at all
    name = name_at(asked, topic.topic_id) if has_id else topic.name
    if name is None:
        return DeletableTopicResult(
            name=None, topic_id=topic.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
        )
    may_delete = access.may_topic(AclOperation.DELETE, name, log_denied=False)
    if not access.may_topic(AclOperation.DESCRIBE, name):
        shown = None if has_id else name
        return DeletableTopicResult(name=shown, topic_id=topic.topic_id, error_code=REFUSED)
    if may_delete:
        return None
    is_missing = name not in image.topics
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_missing else REFUSED
    access.may_topic(AclOperation.DELETE, name)  # for the audit log
    return DeletableTopicResult(name=name, topic_id=topic.topic_id, error_code=code)


_CONFIG_ERRORS: Final[Mapping[int, ErrorCode]] = MappingProxyType(
    {
        ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ResourceType.BROKER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ResourceType.BROKER_LOGGER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ResourceType.CLIENT_METRICS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def _may_configure(access: Access, operation: AclOperation, resource: Any) -> bool:
    match resource.resource_type:
        case ResourceType.TOPIC:
            return access.may_topic(operation, resource.resource_name)
        case ResourceType.GROUP:
            return access.may_group(operation, resource.resource_name)
        case kind if kind in _CONFIG_ERRORS:
            return access.may_cluster(operation)
        case _:
            return True  # the handler refuses an unknown kind


def guard_describe_configs(asked: Asked[DescribeConfigsRequest]) -> Reply:
    """Require DESCRIBE_CONFIGS of each topic and group; of the cluster for other resources."""
    permitted, refused = divided(
        asked.request.resources,
        lambda one: _may_configure(asked.access, AclOperation.DESCRIBE_CONFIGS, one),
    )
    results = [_config_refusal(one, DescribeConfigsResult) for one in refused]
    return adding(asked.forward(changed(asked.request, resources=permitted)), results=results)


def guard_alter_configs(asked: Asked[Any]) -> Reply:
    """Require ALTER_CONFIGS of each topic and group; of the cluster for other resources."""
    permitted, refused = divided(
        asked.request.resources,
        lambda one: _may_configure(asked.access, AclOperation.ALTER_CONFIGS, one),
    )
    results = [_config_refusal(one, AlterConfigsResourceResponse) for one in refused]
    return adding(asked.forward(changed(asked.request, resources=permitted)), responses=results)


def _config_refusal(resource: Any, shape: type[Any]) -> Any:
    return shape(
        **described(shape, _CONFIG_ERRORS[resource.resource_type]),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
