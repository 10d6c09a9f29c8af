"""The records of `mirror.<alias>.positions`, the compacted topic at the target.

Key and value are JSON objects, so that every consumer can show them. The key's `kind`:

| kind | further fields of the key | value |
|---|---|---|
| generation | | the mirror that writes here now: Generation |
| position | topic, partition | the next offset to copy: Position |
| runs | topic, partition | up to 512 runs of [upstream, downstream, size]: Translation |
| checkpoint | | time of the last commits for groups: Checkpoint |

With `exactly_once`, a position is in the transaction of the records that it counts. Otherwise it
follows their acknowledgement. In both cases a transaction of the id `mirror.<alias>` writes it,
which fences an older mirror of the alias.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, assert_never

from quorumlog.mirror.core.offset_runs import OffsetRun
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition

SAMPLE_RUNS: Final = 8
_TOPIC_ID_BYTES: Final = 16


class BadPositionRecord(ValueError):
    """A record of the positions topic that no mirror has written, or that a newer mirror wrote."""


class RecordKey(NamedTuple):
    """The key of a record; `partition` is None for a kind that belongs to no partition."""

    kind: str
    partition: TopicPartition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where the copy of one partition goes on.

    offset: the next offset to copy, of the source. `leader_epoch`: of the record before, -1 if
    unknown. `topic_id`, `copy_id`: of the topic and of its copy; zeros if the brokers have no topic
    ids. `runs`: the first run and the newest.
    """

    offset: int
    topic_id: bytes = ZERO_TOPIC_ID
    copy_id: bytes = ZERO_TOPIC_ID
    leader_epoch: int = -1
    runs: tuple[OffsetRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Translation:
    """The runs of a partition of the topics with these ids; written when groups are moved."""

    topic_id: bytes
    copy_id: bytes
    runs: tuple[OffsetRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The mirror that owns the positions topic: `instance` is unique for each start."""

    instance: str
    started_ms: int
    source_cluster: str | None
    target_cluster: str | None
    topics: tuple[str, ...]
    exclude: tuple[str, ...]
    prefix: str
    target_alias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The mirror was alive at `time_ms`. `stopped`: reasons, by topics that are not copied."""

    time_ms: int
    groups: int = 0
    stopped: Mapping[str, str] | None = None


GENERATION_KEY: Final = RecordKey("generation")
CHECKPOINT_KEY: Final = RecordKey("checkpoint")
Content = Position | Translation | Generation | Checkpoint


def encode_key(key: RecordKey) -> bytes:
    """Return the bytes of a key; equal keys have equal bytes, as compaction requires."""
    place = {} if key.partition is None else key.partition._asdict()
    return _json({"kind": key.kind, **place})


def decode_key(data: bytes | None) -> RecordKey:
    """Raise BadPositionRecord for other bytes."""
    found = _object(data, "key")
    kind = _field(found, "kind", str)
    if "topic" not in found:
        return RecordKey(kind)
    return RecordKey(
        kind, TopicPartition(_field(found, "topic", str), _field(found, "partition", int))
    )


def encode_content(content: Content) -> bytes:
    """Return the bytes of a value."""
    value: dict[str, Any]
    match content:
        case Position() | Translation():
            value = {
                "topic_id": _text_of(content.topic_id),
                "copy_id": _text_of(content.copy_id),
                "runs": content.runs,
            }
            if isinstance(content, Position):
                value |= {"offset": content.offset, "leader_epoch": content.leader_epoch}
        case Generation():
            value = {name: getattr(content, name) for name in _GENERATION}
        case Checkpoint():
            stopped = {**(content.stopped or {})}
            value = {"time_ms": content.time_ms, "groups": content.groups, "stopped": stopped}
        case _:
            assert_never(content)
    return _json(value)


def decode_content(kind: str, data: bytes) -> Content | None:
    """Return the value of a record of this kind; None for a kind of a newer mirror.

    Raises BadPositionRecord.
    """
    found = _object(data, kind)
    match kind:
        case "position":
            return Position(
                offset=_field(found, "offset", int),
                topic_id=_topic_id(found, "topic_id"),
                copy_id=_topic_id(found, "copy_id"),
                leader_epoch=_field(found, "leader_epoch", int),
                runs=_runs(found),
            )
        case "runs":
            ids = _topic_id(found, "topic_id"), _topic_id(found, "copy_id")
            return Translation(*ids, _runs(found))
        case "generation":
            return Generation(
                instance=_field(found, "instance", str),
                started_ms=_field(found, "started_ms", int),
                source_cluster=_field(found, "source_cluster", str | None),
                target_cluster=_field(found, "target_cluster", str | None),
                topics=_texts(found, "topics"),
                exclude=_texts(found, "exclude"),
                prefix=_field(found, "prefix", str),
                target_alias=_field(found, "target_alias", str | None),
            )
        case "checkpoint":
            stopped = _field(found, "stopped", dict)
            return Checkpoint(
                time_ms=_field(found, "time_ms", int),
                groups=_field(found, "groups", int),
                stopped={str(name): str(reason) for name, reason in stopped.items()},
            )
        case _:
            return None


_GENERATION: Final = (
    "instance", "started_ms", "source_cluster", "target_cluster", "topics", "exclude", "prefix",
    "target_alias",
)  # fmt: skip


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _object(data: bytes | None, place: str) -> dict[str, Any]:
    try:
        found = json.loads(data or b"")
    except ValueError as error:
        raise BadPositionRecord(f"{place}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadPositionRecord(f"{place}: no JSON object")
    return found


def _field(found: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = found.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadPositionRecord(f"{name}: {value!r} has the wrong type")
    return value


def _texts(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(str(text) for text in _field(found, name, list))


def _text_of(topic_id: bytes) -> str:
    """Return Kafka's text of a topic id."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def _topic_id(found: Mapping[str, Any], name: str) -> bytes:
    text = _field(found, name, str)
    try:
        topic_id = urlsafe_b64decode(text + "==")
    except ValueError:
        topic_id = b""
    if len(topic_id) != _TOPIC_ID_BYTES:
        raise BadPositionRecord(f"{name}: {text!r} is no id of a topic")
    return topic_id


def _runs(found: Mapping[str, Any]) -> tuple[OffsetRun, ...]:
    return tuple(_run(one) for one in _field(found, "runs", list))


def _run(numbers: Iterable[Any]) -> OffsetRun:
    is_triple = isinstance(numbers, list) and len(numbers) == 3
    if is_triple and all(type(number) is int and number >= 0 for number in numbers):
        return OffsetRun(*numbers)
    raise BadPositionRecord(f"runs: {numbers!r} is not [upstream, downstream, size]")
