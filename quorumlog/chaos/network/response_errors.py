"""The errors in a response, and the lines of `responses.jsonl` that they amount to. Pure."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from quorumlog.chaos.network.error_responses import (
    NO_OFFSET,
    NONE,
    SECOND_NS,
    UNREADABLE,
    ErrorResponse,
)
from quorumlog.chaos.network.response_watch import Answered
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import ZERO_UUID, Response, Struct
from quorumlog.wire.codec.schemas import APIS

_ERRORS: Final = ("error_code", "partition_error_code")
_NAMES: Final = ("name", "topic", "group_id", "key", "transactional_id", "member_id")
_PARTITIONS: Final = ("partition_index", "partition", "index")
_LINES_PER_S: Final = 20  # of one API of one node
_TROUBLED_MAX: Final = 10_000  # pairs of a client and an API


class _Plan(NamedTuple):
    """The fields of a struct that matter here; "": it has no such field."""

    error: str
    name: str
    partition: str
    has_topic_id: bool
    has_offset: bool
    children: tuple[str, ...]  # arrays of structs with an error inside


@cache
def _plan(struct: type[Any]) -> _Plan:
    slots = struct.__slots__
    children = []
    for field in struct.FIELDS:
        if isinstance(field.type, list) and isinstance(field.type[0], type):
            plan = _plan(field.type[0])
            if plan.error or plan.children:
                children.append(field.name)
    return _Plan(
        error=_first(_ERRORS, slots),
        name="" if issubclass(struct, Response) else _first(_NAMES, slots),
        partition=_first(_PARTITIONS, slots),
        has_topic_id="topic_id" in slots,
        has_offset="committed_offset" in slots,
        children=tuple(children),
    )


def _first(names: tuple[str, ...], slots: tuple[str, ...]) -> str:
    return next((name for name in names if name in slots), "")


class Place(NamedTuple):
    """The partitions, and the topics or groups, that have an error."""

    partitions: list[str]
    names: list[str]


class _Walk:
    """The errors of one response, each with its place."""

    def __init__(self, topics: Mapping[bytes, str], *, successes: bool) -> None:
        self._topics: Final = topics
        self._successes: Final = successes
        self.found: Final[dict[str, Place]] = {}

    def visit(self, struct: Struct, owner: str = "") -> None:
        """Note the errors of `struct`, and of the structs in it. `owner` is its topic or group."""
        kind: Any = type(struct)
        plan = _plan(kind)
        if plan.name:
            owner = getattr(struct, plan.name) or owner
            if plan.has_topic_id and not getattr(struct, plan.name):
                topic_id: bytes = getattr(struct, "topic_id")  # noqa: B009 - not of every struct
                owner = self._topics.get(topic_id, topic_id.hex())
        if plan.error:
            self._note(plan, struct, owner)
        for child in plan.children:
            for one in getattr(struct, child) or ():
                self.visit(one, owner)

    def _note(self, plan: _Plan, struct: Struct, owner: str) -> None:
        code: int = getattr(struct, plan.error)
        name = _error_name(code)
        if code == ErrorCode.NONE:
            if plan.has_offset and getattr(struct, "committed_offset") < 0:  # noqa: B009 - as above
                name = NO_OFFSET
            elif not self._successes:
                return
        place = self.found.setdefault(name, Place([], []))
        if plan.partition:
            place.partitions.append(f"{owner}-{getattr(struct, plan.partition)}")
        elif owner:
            place.names.append(owner)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def errors_in(
    response: Response, topics: Mapping[bytes, str], *, successes: bool = False
) -> dict[str, Place]:
    """Return the names of the errors in a response, each with its place.

    Partitions are named `topic-0`. `topics`: the names of topics by id. `successes`: include NONE.
    """
    walk = _Walk(topics, successes=successes)
    walk.visit(response)
    return walk.found


class ErrorLog:
    """Turns responses into lines, a limited number in a second.

    Invariants: at most _LINES_PER_S lines for a node and an API in a second, and a line that counts
    the others; after an error, the first success of that API to that client has a line.
    """

    def __init__(self) -> None:
        self._topics: Final[dict[bytes, str]] = {}
        self._troubled: Final[dict[tuple[str, str], None]] = {}  # clients whose last was an error
        self._lines: Final[dict[tuple[int, str], _Second]] = {}

    def lines(self, time_ns: int, node: int, answered: Answered) -> Iterator[ErrorResponse]:
        """Yield the lines of a response."""
        request, response = answered
        api, client = APIS[request.api_key].name, request.client_id or ""
        for error, place in self._errors(api, client, response).items():
            line = ErrorResponse(
                time_ns=time_ns,
                node=node,
                client=client,
                api=api,
                version=request.api_version,
                correlation_id=request.correlation_id,
                error=error,
                partitions=tuple(place.partitions),
                names=tuple(place.names),
            )
            yield from self._limited(line)

    def left_out(self) -> Iterator[ErrorResponse]:
        """Yield the lines that count responses, of the seconds that are not over."""
        for (node, api), second in self._lines.items():
            yield from second.counted(node, api)

    def _errors(self, api: str, client: str, response: Response | None) -> Mapping[str, Place]:
        if response is None:
            return {UNREADABLE: Place([], [])}
        if api == "Metadata":
            self._learn(response)
        who = (client, api)
        found = errors_in(response, self._topics, successes=who in self._troubled)
        if found.keys() - {NONE, NO_OFFSET}:
            if len(self._troubled) >= _TROUBLED_MAX:
                self._troubled.pop(next(iter(self._troubled)))
            self._troubled[who] = None
        else:
            self._troubled.pop(who, None)
        return found

    def _learn(self, metadata: Any) -> None:
        """Learn the names of topics, by which newer responses do not name them (KIP-516)."""
        for topic in metadata.topics:
            if topic.name and topic.topic_id != ZERO_UUID:
                self._topics[topic.topic_id] = topic.name

    def _limited(self, line: ErrorResponse) -> Iterator[ErrorResponse]:
        key, number = (line.node, line.api), line.time_ns // SECOND_NS
        second = self._lines.get(key)
        if second is None or second.number != number:
            if second is not None:
                yield from second.counted(*key)
            second = self._lines[key] = _Second(number)
        if second.written < _LINES_PER_S:
            second.written += 1
            yield line
        else:
            second.first_ns = second.first_ns or line.time_ns
            second.left_out += 1


class _Second:
    """The lines of a node and an API in one second."""

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.written = self.left_out = self.first_ns = 0

    def counted(self, node: int, api: str) -> Iterator[ErrorResponse]:
        """Yield the line that counts the responses without a line, if there are any."""
        if self.left_out:
            yield ErrorResponse(time_ns=self.first_ns, node=node, api=api, left_out=self.left_out)
