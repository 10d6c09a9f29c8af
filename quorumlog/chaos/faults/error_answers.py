"""Error responses in the place of a broker, for all requests and versions that have messages. Pure.

The generated classes name the fields with errors. A response has its error at the top, or in the
entries that the request names: topics, partitions, groups. `refuse_all` fills a whole response;
`refuse_topic` moves the entries of one topic out of a request into a response, and `merged` joins
that response with the broker's response to the rest. Source: `getErrorResponse` of the requests of
Apache Kafka; KIP-227 (errors of fetch sessions), KIP-516 (topic ids).
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, cast

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Response, Struct
from quorumlog.wire.codec.schemas import APIS, request_class, response_class

_ERRORS: Final = ("error_code", "partition_error_code")
_TOPIC: Final = ("name", "topic", "topic_name")
_PARTITION: Final = ("partition_index", "partition", "index", "partition_id")
_ENTRY_KEYS: Final = ("group_id", "transactional_id", "producer_id", "key")
_KEYS: Final = (
    *_ENTRY_KEYS, "topic_id", "member_id", "group_instance_id", "resource_type", "resource_name",
    "user", "entity",
)  # fmt: skip
_SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "responses": ("topic_data", "topics", "resources", "topic_names"),
    "partition_responses": ("partition_data",),
    "partitions": ("partition_indexes",),
    "groups": ("group_ids",),
    "coordinators": ("coordinator_keys",),
    "results": ("topics", "groups_names", "creations", "resources", "deletions", "upsertions"),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "results_by_transaction": ("transactions",),
    "topic_results": ("topics",),
    "filter_results": ("filters",),
    "replica_election_results": ("topic_partitions",),
    "partition_result": ("partitions",),
    "transaction_states": ("transactional_ids",),
}
"""The arrays of requests whose items the entries of a response's array answer, besides an array of
the same name."""
_NOT_PER_TOPIC: Final = frozenset({"AlterReplicaLogDirs", "ElectLeaders"})
"""Requests that name topics per directory, or none for all topics: no topic can be taken out."""
IN_ENTRIES: Final = frozenset({"Fetch", "Metadata"})
"""Responses whose error at the top means the fetch session, or the client's bootstrap, alone."""
AT_THE_TOP: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.REBOOTSTRAP_REQUIRED,
    }
)
_NOTHING: Final = frozenset(
    {
        *("base_offset", "high_watermark", "last_stable_offset", "committed_offset", "offset"),
        *("end_offset", "low_watermark", "node_id", "port", "producer_id", "producer_epoch"),
        *("generation_id", "leader_id", "member_epoch"),
    }
)
"""Fields that are -1 beside an error."""

Kind = Any
"""A class of structs: mypy holds that they have no hash."""
Topics = Mapping[bytes, str]
"""The names of topics, by id."""


class _Array(NamedTuple):
    """An array of entries of a response, and the arrays of the request that they answer."""

    name: str
    entry: Kind
    sources: tuple[str, ...]
    versions: str


class _Shape(NamedTuple):
    """The fields of a struct of a response that matter here; "": it has no such field."""

    error: str
    error_versions: str
    topic: str
    partition: str
    nothing: tuple[str, ...]  # the fields that are -1 beside an error
    arrays: tuple[_Array, ...]  # with errors inside


@cache
def _shape(struct: Kind) -> _Shape:
    arrays, error = [], _first(_ERRORS, struct)
    versions = {field.name: field.versions for field in struct.FIELDS}
    for field in struct.FIELDS:
        if isinstance(field.type, list) and isinstance(field.type[0], type):
            entry = cast(Kind, field.type[0])
            if _shape(entry).error or _shape(entry).arrays:
                sources = (field.name, *_SOURCES.get(field.name, ()))
                arrays.append(_Array(field.name, entry, sources, field.versions))
    return _Shape(
        error=error,
        error_versions=versions.get(error, ""),
        topic="" if issubclass(struct, Response) else _first(_TOPIC, struct),
        partition=_first(_PARTITION, struct),
        nothing=tuple(name for name in struct.__slots__ if name in _NOTHING),
        arrays=tuple(arrays),
    )


def _shape_of(struct: Struct) -> _Shape:
    return _shape(_kind_of(struct))


def _kind_of(struct: Struct) -> Kind:
    return type(struct)


def _first(names: tuple[str, ...], struct: Kind) -> str:
    return next((name for name in names if name in struct.__slots__), "")


@cache
def _has(versions: str, version: int) -> bool:
    """Return whether a version is in "3+", "3-12" or "7"."""
    low, dash, high = versions.partition("-")
    if not dash:
        return version >= int(low[:-1]) if low.endswith("+") else version == int(low or -1)
    return int(low) <= version <= int(high)


def has_error(api_key: int) -> bool:
    """Return whether a response of this API has an error code."""
    kind: Kind = response_class(api_key)
    shape = _shape(kind)
    return bool(shape.error or shape.arrays)


def names_topics(api_key: int) -> bool:
    """Return whether an error can be given for a single topic of a request."""
    if APIS[api_key].name in _NOT_PER_TOPIC:
        return False
    return _reaches_topics(request_class(api_key), response_class(api_key))


def _reaches_topics(request: Kind, response: Kind) -> bool:
    for array in _shape(response).arrays:
        for name in array.sources:
            if name in request.__slots__:
                if _shape(array.entry).topic:
                    return True
                kind = next(field.type for field in request.FIELDS if field.name == name)
                item = kind[0] if isinstance(kind, list) else kind
                if isinstance(item, type) and _reaches_topics(item, array.entry):
                    return True
    return False


def names_partitions(api_key: int) -> bool:
    """Return whether an error can be given for a single partition of a request."""
    return names_topics(api_key) and _reaches_partitions(response_class(api_key))


def _reaches_partitions(struct: Kind) -> bool:
    shape = _shape(struct)
    return bool(shape.partition and shape.error) or any(
        _reaches_partitions(array.entry) for array in shape.arrays
    )


class Refusal(NamedTuple):
    """The error of a rule. topic: "" for every entry; partition: -1 for all of the topic."""

    error: ErrorCode
    topic: str = ""
    partition: int = -1


def refuse_all(request: Struct, api_key: int, version: int, error: ErrorCode) -> Response | None:
    """Return the response that has the error for the whole request; None: it has no place for it.

    Such as a Metadata request that names no topic.
    """
    answer: Response = _blank(response_class(api_key), request)
    shape, name = _shape_of(answer), APIS[api_key].name
    if name not in IN_ENTRIES or error in AT_THE_TOP:
        if shape.error and _has(shape.error_versions, version):
            setattr(answer, shape.error, int(error))
            return answer
        if name in IN_ENTRIES:
            return None
    if _fill(answer, request, version, error):
        return answer
    if name in IN_ENTRIES:
        return None
    for array in shape.arrays:  # no entry of the request is answered by one: DescribeLogDirs
        if _has(array.versions, version) and (field := _shape(array.entry).error):
            entry = _blank(array.entry, None)
            setattr(entry, field, int(error))
            getattr(answer, array.name).append(entry)
            return answer
    return None


def _fill(answer: Struct, source: Struct, version: int, error: ErrorCode) -> bool:
    """Give each entry an error, at the highest level that has one; return whether there are any."""
    is_filled = False
    for array in _arrays(answer, version):
        for items in _sources(array, source):
            for item in items:
                entry, field = _blank(array.entry, item), _shape(array.entry).error
                if field:
                    setattr(entry, field, int(error))
                elif not (isinstance(item, Struct) and _fill(entry, item, version, error)):
                    continue
                getattr(answer, array.name).append(entry)
                is_filled = True
    return is_filled


def _arrays(answer: Struct, version: int) -> Iterator[_Array]:
    return (array for array in _shape_of(answer).arrays if _has(array.versions, version))


def _sources(array: _Array, source: Struct) -> Iterator[list[Any]]:
    """Yield the items that the entries of this array answer. Null stands for all: no item."""
    if array.name == "results" and hasattr(source, "dirs"):
        yield [topic for directory in source.dirs for topic in directory.topics]
    for name in array.sources:
        if items := getattr(source, name, None):
            yield items


def refuse_topic(
    request: Struct,
    api_key: int,
    version: int,
    refusal: Refusal,
    topics: Topics,
    *,
    takes: bool = True,
) -> Response | None:
    """Return the response that refuses the entries of one topic; None: the request names none.

    `takes`: the entries are taken out of the request. Also takes a response as the request: of a
    request for all topics, which names none.
    """
    answer: Response = _blank(response_class(api_key), request)
    refuse = _Refuse(version, refusal, topics, takes)
    return answer if refuse.topics_in(answer, request) else None


class _Refuse:
    """One walk through a request."""

    def __init__(self, version: int, refusal: Refusal, topics: Topics, takes: bool) -> None:
        self._version: Final = version
        self._refusal: Final = refusal
        self._topics: Final = topics
        self._takes: Final = takes

    def topics_in(self, answer: Struct, source: Struct) -> bool:
        """Add the refused entries to `answer`; return whether there are any."""
        is_found = False
        for array in _arrays(answer, self._version):
            for items in _sources(array, source):
                kept = []
                for item in items:
                    entry, is_left = self._refused(array, item)
                    if entry is not None:
                        getattr(answer, array.name).append(entry)
                        is_found = True
                    if is_left:
                        kept.append(item)
                if self._takes:
                    items[:] = kept
        return is_found

    def _refused(self, array: _Array, item: Any) -> tuple[Struct | None, bool]:
        """Return the refused part of an item, and whether any of the item remains."""
        shape = _shape(array.entry)
        if not shape.topic:
            entry: Struct = _blank(array.entry, item)
            if not self.topics_in(entry, item):
                return None, True
            return entry, has_entries(array.entry, item)
        if _topic_of(item, self._topics) != self._refusal.topic:
            return None, True
        if self._refusal.partition < 0 and shape.error:
            entry = _blank(array.entry, item)
            setattr(entry, shape.error, int(self._refusal.error))
            return entry, False
        return self._partitions_of(array.entry, item)

    def _partitions_of(self, kind: Kind, item: Any) -> tuple[Struct | None, bool]:
        entry, is_left = None, False
        for array in _shape(kind).arrays if isinstance(item, Struct) else ():
            for items in _sources(array, item) if _has(array.versions, self._version) else ():
                met = [one for one in items if self._is_met(one)]
                kept = [one for one in items if not self._is_met(one)]
                if met:
                    entry = _blank(kind, item) if entry is None else entry
                    getattr(entry, array.name).extend(self._parts(array.entry, met))
                is_left = is_left or bool(kept)
                if self._takes and met:
                    items[:] = kept
        return entry, is_left or entry is None

    def _is_met(self, item: Any) -> bool:
        return self._refusal.partition in {-1, _index_of(item)}

    def _parts(self, kind: Kind, met: list[Any]) -> Iterator[Struct]:
        for one in met:
            part = _blank(kind, one)
            setattr(part, _shape(kind).error, int(self._refusal.error))
            yield part


def _index_of(item: Any) -> int:
    """Return the index of a partition of a request: the number itself, or a field."""
    return item if isinstance(item, int) else int(getattr(item, _first(_PARTITION, type(item))))


def has_entries(kind: Kind, source: Struct) -> bool:
    """Return whether a request still names entries that a response of this class answers."""
    return any(items for array in _shape(kind).arrays for items in _sources(array, source))


def _topic_of(item: object, topics: Topics) -> str:
    if isinstance(item, str):
        return item
    name = next((getattr(item, one) for one in _TOPIC if getattr(item, one, "")), "")
    return name or topics.get(getattr(item, "topic_id", b""), "")


def merged(response: Response, errors: Response) -> Response:
    """Put the entries of `errors` into a response, in the place of those with the same keys."""
    _merge(response, errors)
    return response


def _merge(into: Any, errors: Any) -> None:
    shape = _shape_of(errors)
    if shape.error and getattr(errors, shape.error):
        setattr(into, shape.error, getattr(errors, shape.error))
    for array in shape.arrays:
        entries, added = getattr(into, array.name), getattr(errors, array.name)
        if not added:
            continue
        places = {key: place for place, entry in enumerate(entries) for key in _keys_of(entry)}
        for entry in added:
            place = next((places[key] for key in _keys_of(entry) if key in places), None)
            inner = _shape(array.entry)
            if place is None:
                entries.append(entry)
            elif inner.error and getattr(entry, inner.error):
                entries[place] = entry
            else:
                _merge(entries[place], entry)


def _keys_of(entry: Any) -> Iterator[tuple[object, ...]]:
    """Yield the keys of an entry: a topic has its id, its name, or both."""
    if topic_id := getattr(entry, "topic_id", b"").strip(b"\0"):
        yield (topic_id,)
    names = [name for name in (*_TOPIC, *_PARTITION, *_ENTRY_KEYS) if name in entry.__slots__]
    key = tuple(getattr(entry, name) for name in names)
    if not (_shape_of(entry).topic and key in {("",), (None,)}):
        yield key


def _blank(struct: Kind, item: object) -> Any:
    """Return an entry with the keys of the item that it answers, and nothing else."""
    made = struct()
    for name in _shape(struct).nothing:
        setattr(made, name, -1)
    if "records" in struct.__slots__:
        made.records = b""
    if isinstance(item, Struct):
        for own, name in _copied(struct, _kind_of(item)):
            setattr(made, own, getattr(item, name))
    elif item is not None:
        keys = (_shape(struct).topic, _shape(struct).partition, *_KEYS)
        setattr(made, next(key for key in keys if key and key in struct.__slots__), item)
    return made


@cache
def _copied(struct: Kind, item: Kind) -> tuple[tuple[str, str], ...]:
    """Return the keys of an entry, each with the field of the request's item that has it."""
    keys = ("member_id",) if issubclass(struct, Response) else _KEYS
    pairs = [(key, key) for key in keys if key in struct.__slots__ and key in item.__slots__]
    shape = _shape(struct)
    for names, own in ((_TOPIC, shape.topic), (_PARTITION, shape.partition)):
        if own and (name := _first(names, item)):
            pairs.append((own, name))
    if "user" in struct.__slots__ and "name" in item.__slots__:
        pairs.append(("user", "name"))
    return tuple(pairs)
