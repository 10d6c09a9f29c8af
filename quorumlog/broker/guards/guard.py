"""The parts of a guard: its questions, refusals in the form of a response, and amended replies.

A guard passes the permitted rest of a request to the handler, and adds the refused rest to the
response. A handler gets no forbidden topic: so a missing topic and a forbidden topic look alike.
"""

import asyncio
from collections.abc import Callable, Iterable
from copy import copy
from inspect import iscoroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

from quorumlog.broker.server.api import BrokerContext, Reply, when_done
from quorumlog.invariants import InvariantViolation, some
from quorumlog.metadata_quorum.image.acls import CLUSTER_NAME, AclOperation, AclResourceType
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.message import Request, Response, Struct
from quorumlog.wire.codec.schemas import RequestHeader, response_class

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
RequestT = TypeVar("RequestT", bound=Request[Any])

MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
"""Kafka's message of each error."""
_INDEXES: Final = ("partition_index", "index", "partition", "partition_id")
_ERROR_CODES: Final = ("error_code", "partition_error_code")
_ID: Final = "topic_id"
_NAMES: Final = ("name", "topic", "topic_name", _ID)


class Access(NamedTuple):
    """The rights of the client of one request. `api`: Kafka's name of the request."""

    context: BrokerContext
    api: str

    def may_cluster(self, operation: AclOperation, *, log_denied: bool = True) -> bool:
        """Whether the client may do the operation on the cluster."""
        return self._may(operation, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied)

    def may_topic(self, operation: AclOperation, name: str, *, log_denied: bool = True) -> bool:
        """Whether the client may do the operation on the topic, if it exists or not."""
        return self._may(operation, AclResourceType.TOPIC, name, log_denied)

    def may_group(self, operation: AclOperation, group_id: str, *, log_denied: bool = True) -> bool:
        """Whether the client may do the operation on the group."""
        return self._may(operation, AclResourceType.GROUP, group_id, log_denied)

    def may_transactional_id(
        self, operation: AclOperation, transactional_id: str, *, log_denied: bool = True
    ) -> bool:
        """Whether the client may do the operation on the transactional id."""
        return self._may(operation, AclResourceType.TRANSACTIONAL_ID, transactional_id, log_denied)

    def operations(self, resource_type: AclResourceType, name: str) -> int:
        """Return the bit field of the client's operations on a resource (KIP-430)."""
        context = self.context
        access = some(context.access, "guards are for brokers with an authorizer")
        return access.authorized_operations(
            context.principal, context.client_host, resource_type, name
        )

    def _may(
        self, operation: AclOperation, resource_type: AclResourceType, name: str, log_denied: bool
    ) -> bool:
        return self.context.may(operation, resource_type, name, api=self.api, log_denied=log_denied)


class Asked(NamedTuple, Generic[RequestT]):
    """A request at a guard; `forward` passes it, or a part of it, to the handler."""

    access: Access
    header: RequestHeader
    request: RequestT
    forward: Callable[[RequestT], Reply]

    @property
    def context(self) -> BrokerContext:
        """The parts of the broker."""
        return self.access.context

    @property
    def version(self) -> int:
        """The version of the request."""
        return self.header.api_version

    def pass_on(self) -> Reply:
        """Return the handler's reply to the whole request."""
        return self.forward(self.request)


Guard = Callable[[Asked[Any]], Reply]


def changed(struct: S, **values: Any) -> S:
    """Return a copy of a request, or of a part of it, with other values in these fields."""
    other = copy(struct)
    for name, value in values.items():
        setattr(other, name, value)
    return other


def amended(reply: Reply, amend: Callable[[Any], Response]) -> Reply:
    """Return the reply with its response amended, now or when it comes; no response stays none."""
    if reply is None:
        return None
    if isinstance(reply, asyncio.Future):
        return when_done(reply, amend)
    if iscoroutine(reply):
        return _amended_later(reply, amend)
    return amend(reply)


async def _amended_later(reply: Any, amend: Callable[[Any], Response]) -> Response | None:
    response = await reply
    return None if response is None else amend(response)


def adding(reply: Reply, **refused: list[Any]) -> Reply:
    """Return the reply with more items in these lists of its response."""

    def amend(response: Response) -> Response:
        for name, results in refused.items():
            setattr(response, name, [*getattr(response, name), *results])
        return response

    return amended(reply, amend)


def divided(items: Iterable[T], is_permitted: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Return the permitted items, and the refused items, both in order."""
    permitted: list[T] = []
    refused: list[T] = []
    for item in items:
        (permitted if is_permitted(item) else refused).append(item)
    return permitted, refused


def by_topic(
    asked: Asked[Any],
    operation: AclOperation,
    shape: type[Struct],
    *,
    named: Callable[[Any], str | None] | None = None,
    **more: Any,
) -> Reply:
    """Require an operation on each of the request's `topics`: TOPIC_AUTHORIZATION_FAILED.

    `named` returns the name of a topic; None: the handler refuses it. `more`: as for
    `refused_topics`.
    """
    name_of = named or (lambda topic: getattr(topic, _name_in(type(topic), _NAMES)))

    def is_permitted(topic: Struct) -> bool:
        name = name_of(topic)
        return name is None or asked.access.may_topic(operation, name)

    request = asked.request
    permitted, refused = divided(request.topics, is_permitted)
    if not refused:
        return asked.pass_on()
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    results = refused_topics(refused, shape, code, **more)
    if not permitted:
        response: Callable[..., Response] = response_class(request.API_KEY)
        return response(topics=results)
    return adding(asked.forward(changed(request, topics=permitted)), topics=results)


def refused_topics(
    topics: Iterable[Struct] | None, shape: type[S], error_code: ErrorCode, **more: Any
) -> list[S]:
    """Return topics of a response of class `shape`, with an error for each requested partition.

    `more`: the values of further fields of a partition.
    """
    partitions_name, part = _partitions_of(shape)
    index_name, error_name = _name_in(part, _INDEXES), _name_in(part, _ERROR_CODES)
    name_of = _name_in(shape, _NAMES)
    results = []
    for topic in topics or ():
        result = shape()
        setattr(result, name_of, getattr(topic, _name_in(type(topic), _NAMES)))
        if _ID in topic.__slots__ and _ID in shape.__slots__:
            setattr(result, _ID, getattr(topic, _ID))
        partitions = [
            part(**{index_name: index, error_name: error_code, **more})
            for index in partition_indexes(topic)
        ]
        setattr(result, partitions_name, partitions)
        results.append(result)
    return results


def partition_indexes(topic: Struct) -> list[int]:
    """Return the indexes of the partitions in a topic of a request."""
    [listed] = [name for name in topic.__slots__ if isinstance(getattr(topic, name), list)]
    return [
        one if isinstance(one, int) else getattr(one, _name_in(type(one), _INDEXES))
        for one in getattr(topic, listed)
    ]


def _partitions_of(shape: type[Struct]) -> tuple[str, type[Any]]:
    """Return the field of a topic's partitions, and their class."""
    for one in shape.FIELDS:
        if isinstance(one.type, list) and isinstance(one.type[0], type):
            return one.name, one.type[0]
    raise InvariantViolation(f"{shape.__name__} has partitions")


def _name_in(shape: type[Struct], names: Iterable[str]) -> str:
    return next(name for name in names if name in shape.__slots__)


def refused_whole(asked: Asked[Any], error_code: ErrorCode, **more: Any) -> Response:
    """Return a response with the error of the whole request. `more`: the values of more fields."""
    shape = response_class(asked.request.API_KEY)
    response: Callable[..., Response] = shape
    return response(**described(shape, error_code), **more)


def described(shape: type[Struct], error_code: ErrorCode) -> dict[str, Any]:
    """Return the fields of an error: its code, and its message if `shape` has one."""
    values: dict[str, Any] = {"error_code": error_code}
    if "error_message" in shape.__slots__:
        values["error_message"] = MESSAGES[error_code]
    return values


def name_at(asked: Asked[Any], topic_id: bytes) -> str | None:
    """Return the name of the topic with this id in the broker's image."""
    return asked.context.image.topic_names.get(TopicId(topic_id))
