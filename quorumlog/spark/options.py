"""The options of a read, as in Spark's own Kafka source; checked before the first request.

Unsupported options are refused, never ignored.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.client.settings import ConsumerOptions

EARLIEST: Final = -2
LATEST: Final = -1
_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_OFFSET_DEFAULTS: Final = {  # (starting, ending), by whether it is a stream
    False: ("earliest", "latest"),
    True: ("latest", None),
}
# Settings of the client, by their names in Kafka. The source sets the other settings itself.
_NUMBERS: Final = (
    "default.api.timeout.ms",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "request.timeout.ms",
)
_TEXTS: Final = ("client.id", "client.rack", "isolation.level")
_KAFKA: Final = tuple(f"kafka.{name}" for name in (*_NUMBERS, *_TEXTS))
_OWN: Final = (
    "bootstrap.servers", "kafka.bootstrap.servers", "subscribe", "assign", "startingOffsets",
    "endingOffsets", "failOnDataLoss", "includeHeaders", "maxOffsetsPerTrigger",
    "maxRecordsPerPartition", "pollTimeoutMs",
)  # fmt: skip

Place = int | dict[str, dict[int, int]]  # EARLIEST, LATEST, or by topic and partition


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The topics, offsets and portions of a read.

    topics: whole topics, or `partitions` by topic; one of them is empty.
    starting, ending: EARLIEST, LATEST, or for each partition an offset, EARLIEST or LATEST.
    rows_per_trigger, rows_per_task: 0 for no limit.
    client: keyword arguments of the consumer.
    """

    bootstrap: str
    topics: tuple[str, ...]
    partitions: dict[str, list[int]]
    starting: Place
    ending: Place
    fail_on_data_loss: bool
    has_headers: bool
    rows_per_trigger: int
    rows_per_task: int
    poll_timeout_ms: int
    client: ConsumerOptions


def parse_options(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Parse the options of a DataFrameReader. Raises ValueError with the valid form."""
    known = {name.lower(): name for name in (*_OWN, *_KAFKA)}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f" - did you mean {known[near[0]]}?" if near else ""
            raise ValueError(f"the format quorumlog has no option {name!r}{hint}")
        options[known[name.lower()]] = value
    for name in ("endingOffsets",) if is_stream else ("maxOffsetsPerTrigger",):
        if name in options:
            raise ValueError(f"{name} is not for a {'stream' if is_stream else 'batch'}")
    topics, partitions = _what(options)
    starting, ending = _OFFSET_DEFAULTS[is_stream]
    return SourceOptions(
        bootstrap=_bootstrap(options),
        topics=topics,
        partitions=partitions,
        starting=_place("startingOffsets", options.get("startingOffsets", starting), LATEST),
        ending=_place("endingOffsets", options.get("endingOffsets", ending or "latest"), EARLIEST)
        if not is_stream
        else LATEST,
        fail_on_data_loss=_flag("failOnDataLoss", options, default=True),
        has_headers=_flag("includeHeaders", options, default=False),
        rows_per_trigger=_count("maxOffsetsPerTrigger", options),
        rows_per_task=_count("maxRecordsPerPartition", options),
        poll_timeout_ms=_count("pollTimeoutMs", options, default=120_000),
        client=_client(options),
    )


def has_headers(given: Mapping[str, str]) -> bool:
    """Return whether the schema has the column headers. Raises ValueError."""
    found = next((value for name, value in given.items() if name.lower() == "includeheaders"), None)
    given = {} if found is None else {"includeHeaders": found}
    return _flag("includeHeaders", given, default=False)


def _bootstrap(options: Mapping[str, str]) -> str:
    found = options.get("bootstrap.servers") or options.get("kafka.bootstrap.servers")
    if not found:
        raise ValueError('give the option "bootstrap.servers", as host:port[,host:port]')
    return found


def _what(options: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, list[int]]]:
    if ("subscribe" in options) is ("assign" in options):
        raise ValueError('give one of the options "subscribe" and "assign"')
    if "subscribe" in options:
        topics = tuple(name for text in options["subscribe"].split(",") if (name := text.strip()))
        if not topics:
            raise ValueError("subscribe: it names no topic")
        return topics, {}
    wanted = _json("assign", options["assign"])
    for topic, numbers in wanted.items():
        if not isinstance(numbers, list) or not all(_is_number(one, 0) for one in numbers):
            raise ValueError(f'assign: write it as {{"topic": [0, 1]}}; {topic} has {numbers!r}')
    return (), wanted


def _place(name: str, text: str, refused: int) -> Place:
    if (end := _ENDS.get(text.strip().lower())) is not None:
        if end == refused and name == "endingOffsets":
            raise ValueError(f"{name} {text}: no record lies before it; choose a later end")
        return end
    place: dict[str, dict[int, int]] = {}
    for topic, offsets in _json(name, text).items():
        if not isinstance(offsets, dict) or not all(
            number.isdecimal() and _is_number(offset, EARLIEST)
            for number, offset in offsets.items()
        ):
            raise ValueError(f'{name}: write it as {{"topic": {{"0": 5, "1": -2}}}}: {offsets!r}')
        place[topic] = {int(number): offset for number, offset in offsets.items()}
    return place


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{name}: {text!r} is neither JSON of an object nor a word for it")
    return value


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _flag(name: str, options: Mapping[str, str], *, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise ValueError(f"{name} {text}: write true or false")
    return text == "true"


def _count(name: str, options: Mapping[str, str], default: int = 0) -> int:
    if name not in options:
        return default
    text = options[name].strip()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} {text}: it must be a number above 0")
    return int(text)


def _client(options: Mapping[str, str]) -> ConsumerOptions:
    client: Any = {}  # the consumer checks it
    for name in _NUMBERS:
        if f"kafka.{name}" in options:
            client[name.replace(".", "_")] = _count(f"kafka.{name}", options)
    for name in _TEXTS:
        if f"kafka.{name}" in options:
            client[name.replace(".", "_")] = options[f"kafka.{name}"]
    found: ConsumerOptions = client
    return found
