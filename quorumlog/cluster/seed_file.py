"""The contents that a cluster begins with, as a YAML or JSON file: its fields, and their checks.

A file is checked as a whole before a cluster starts; an error names the line, the field and the
nearest valid name. docs/local-clusters.md has an example with all fields. The words are Kafka's, or
`quorumlog.client`'s where they differ. It needs the extra `seed` (pydantic, PyYAML).
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from quorumlog.client.admin import acls
from quorumlog.cluster.errors import InvalidArgument
from quorumlog.metadata_quorum.controller.configs import configs_error
from quorumlog.wire.codec.topic_names import topic_name_error

_ERRORS_MAX: Final = 10  # lines of one message
_REPEATED_MAX: Final = 100_000  # fields, by aliases
_NO_FILE: Final = "seed"  # in place of the file's name
_QUOTED: Final = "write it in quotes"

Place: TypeAlias = tuple[int | str, ...]
"""The way to a field, such as ("topics", 0, "name")."""


def _bytes_of(value: object) -> bytes | None:
    """Return the bytes of a key or value: text in UTF-8, all else that JSON has as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except TypeError:
        raise ValueError(f"{value} is no text, number, list or object; {_QUOTED}") from None


def _ms_of(value: object) -> object:
    """Return a time in ms since 1970. A time without a zone is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("write ms since 1970, or 2026-01-31T12:00:00Z") from None
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    return value


def _config_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"{value} is no text or number; {_QUOTED}")


def _topic_name(value: str) -> str:
    if problem := topic_name_error(value):
        raise ValueError(problem)
    return value


def _configs(value: dict[str, str]) -> dict[str, str]:
    if problem := configs_error(value):
        raise ValueError(problem)
    return value


def _word(known: Collection[str]) -> BeforeValidator:
    """Return the check for one of these words; `-` counts as `_`, and case does not count."""

    def check(value: object) -> object:
        word = value.replace("-", "_").lower() if isinstance(value, str) else value
        if word not in known:
            raise ValueError(f"{value!r} is unknown; {_hint(str(word), known)}")
        return word

    return BeforeValidator(check)


def _hint(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


Payload = Annotated[bytes | None, BeforeValidator(_bytes_of)]
Millis = Annotated[int, Field(ge=0), BeforeValidator(_ms_of)]
ConfigText = Annotated[str, BeforeValidator(_config_text)]
Configs = Annotated[dict[str, ConfigText], AfterValidator(_configs)]
TopicName = Annotated[str, BeforeValidator(_topic_name)]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SeedRecord(_Part):
    """A record. `partition` None: by the key, or any. `value` None: a tombstone."""

    key: Payload = None
    value: Payload
    headers: dict[str, Payload] = {}
    partition: Annotated[int, Field(ge=0)] | None = None
    timestamp: Millis | None = None


class SeedTopic(_Part):
    """A topic with records. `replication` None: the cluster's default.replication.factor."""

    name: TopicName
    partitions: Count = 1
    replication: Count | None = None
    configs: Configs = {}
    records: list[SeedRecord] = []

    @model_validator(mode="after")
    def _check(self) -> "SeedTopic":
        for index, record in enumerate(self.records):
            if (record.partition or 0) >= self.partitions:
                raise ValueError(
                    f"records.{index} is for partition {record.partition}; "
                    f"the topic has 0 to {self.partitions - 1}"
                )
        return self


class SeedOffset(_Part):
    """A committed offset: the next record of the group."""

    topic: TopicName
    partition: Annotated[int, Field(ge=0)] = 0
    offset: Annotated[int, Field(ge=0)]
    metadata: str = ""


class SeedGroup(_Part):
    """A consumer group without members."""

    name: Text
    offsets: Annotated[list[SeedOffset], Field(min_length=1)]


class SeedUser(_Part):
    """A SCRAM credential."""

    name: Text
    password: Text = Field(repr=False)
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-256"
    iterations: Annotated[int, Field(ge=4096, le=16_384)] = 4096


class SeedAcl(_Part):
    """An ACL (`quorumlog.client.Acl`)."""

    principal: Text
    operation: Annotated[str, _word(acls.OPERATIONS)]
    resource_type: Annotated[str, _word(acls.RESOURCE_TYPES)] = "topic"
    resource_name: Text
    pattern_type: Annotated[str, _word(acls.PATTERN_TYPES)] = "literal"
    permission: Annotated[str, _word(acls.PERMISSIONS)] = "allow"
    host: Text = "*"


class SeedQuota(_Part):
    """Quotas of an entity: names by type (user, client-id, ip); a null name is the default."""

    entity: Annotated[dict[Literal["user", "client-id", "ip"], str | None], Field(min_length=1)]
    values: Annotated[dict[str, float], Field(min_length=1)]

    @property
    def names(self) -> dict[str, str | None]:
        """The entity, as clients take it."""
        return {str(kind): name for kind, name in self.entity.items()}


class Seed(_Part):
    """A whole file. Its order is the order in which the parts are created."""

    topics: list[SeedTopic] = []
    groups: list[SeedGroup] = []
    users: list[SeedUser] = []
    acls: list[SeedAcl] = []
    quotas: list[SeedQuota] = []

    @model_validator(mode="after")
    def _check(self) -> "Seed":
        for kind, names in (
            ("topic", [topic.name for topic in self.topics]),
            ("group", [group.name for group in self.groups]),
            ("user", [f"{user.name} ({user.mechanism})" for user in self.users]),
        ):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"the {kind} {twice} is there twice")
        partitions = {topic.name: topic.partitions for topic in self.topics}
        for group in self.groups:
            for one in group.offsets:
                if one.partition >= partitions.get(one.topic, one.partition + 1):
                    raise ValueError(
                        f"the group {group.name} has an offset of {one.topic}-{one.partition}; "
                        f"the topic has partitions 0 to {partitions[one.topic] - 1}"
                    )
        return self


class SeedSource:
    """A checked seed, and the places of its fields, for messages."""

    def __init__(self, source: str | Path | Mapping[str, Any]) -> None:
        """Read a file, or take the same contents as a dict. Raises InvalidArgument."""
        self._lines: dict[Place, int] = {}
        self._name = _NO_FILE
        if isinstance(source, Mapping):
            content: object = dict(source)
        else:
            self._name = str(source)
            content = self._read(Path(source))
        try:
            self.seed: Final = Seed.model_validate({} if content is None else content)
        except ValidationError as error:
            problems = [self.at(one["loc"], _reason(one)) for one in error.errors()]
            more = len(problems) - _ERRORS_MAX
            lines = problems[:_ERRORS_MAX] + ([f"and {more} more"] if more > 0 else [])
            raise InvalidArgument("\n".join(lines)) from None

    def at(self, place: Place, problem: str) -> str:
        """Return a message with the file, the line and the field."""
        known = next((place[:n] for n in range(len(place), -1, -1) if place[:n] in self._lines), ())
        line = f":{self._lines[known]}" if known in self._lines else ""
        field = ".".join(map(str, place))
        return f"{self._name}{line}: {field}: {problem}" if field else f"{self._name}: {problem}"

    def _read(self, path: Path) -> object:
        try:
            text = path.read_text("utf-8")
            loader, node = _composed(text)
            if node is None:
                return None
            self._lines = _lines_in(node, size=len(text))
            return _values_of(loader, node)
        except RecursionError:
            raise InvalidArgument(f"{path}: it is nested too deeply, or contains itself") from None
        except OSError as error:
            raise InvalidArgument(f"{path}: {error.strerror}") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            line = f":{mark.line + 1}" if mark else ""
            raise InvalidArgument(f"{path}{line}: no YAML: {error.problem}") from None
        except (UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
            raise InvalidArgument(f"{path}: no YAML: {error}") from None


def _composed(text: str) -> tuple[yaml.SafeLoader | yaml.CSafeLoader, yaml.Node | None]:
    """Return the document of a text, None for an empty text, and the loader of its values.

    libyaml reads ten times as fast as Python. Its errors are worded in another way, so that Python
    reads a text that libyaml refuses. Raises YAMLError.
    """
    if yaml.__with_libyaml__:
        fast = yaml.CSafeLoader(text)
        with suppress(yaml.YAMLError):
            return fast, fast.get_single_node()
    loader = yaml.SafeLoader(text)
    return loader, loader.get_single_node()


def _values_of(loader: yaml.SafeLoader | yaml.CSafeLoader, node: yaml.Node) -> object:
    """Return the values of a document. Raises YAMLError, also for a text that its tag refuses."""
    try:
        return loader.construct_document(node)
    except (AttributeError, LookupError):  # PyYAML checks no text before it reads it
        raise yaml.YAMLError("a tag (!!int, !!bool) has a value of another kind") from None


def _lines_in(node: yaml.Node, size: int) -> dict[Place, int]:
    """Return the line of each field of a document of `size` characters. Raises YAMLError.

    Aliases of aliases make a short text as large as they like: reading stops at a limit.
    """
    most = size + _REPEATED_MAX
    lines = [*islice(_lines_of(node, ()), most + 1)]
    if len(lines) > most:
        raise yaml.YAMLError(f"its aliases repeat more than {_REPEATED_MAX} fields")
    return dict(reversed(lines))  # a field counts, not its value


def _lines_of(node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    """Yield each field with its line, from 1. Raises YAMLError for a field that is there twice."""
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines_of(item, (*place, index))
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="the name of a field is a list or an object",
                    problem_mark=key.start_mark,
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value} is there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
            yield (*place, key.value), key.start_mark.line + 1
            yield from _lines_of(value, (*place, key.value))


def _reason(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        known = _fields_at(error["loc"][:-1])
        return f"there is no such field; {_hint(str(error['loc'][-1]), known)}"
    if error["type"] == "missing":
        return "it is missing"
    return error["msg"].removeprefix("Value error, ")


_FIELDS: Final[Mapping[str, type[_Part]]] = {
    "topics": SeedTopic,
    "records": SeedRecord,
    "groups": SeedGroup,
    "offsets": SeedOffset,
    "users": SeedUser,
    "acls": SeedAcl,
    "quotas": SeedQuota,
}


def _fields_at(place: Place) -> tuple[str, ...]:
    """Return the names of the fields of the object at a place."""
    lists = [name for name in place if isinstance(name, str)]
    return tuple((_FIELDS[lists[-1]] if lists else Seed).model_fields)
