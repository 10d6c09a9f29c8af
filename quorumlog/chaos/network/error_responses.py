"""`responses.jsonl`: the brokers' responses with errors to clients, as the forwarders passed them.

One line for each error of a response:

    {"time_ns": 9640000000, "node": 2, "client": "c17", "api": "OffsetFetch", "version": 3,
     "correlation_id": 12, "error": "NOT_COORDINATOR", "names": ["chaos-workers"]}

`time_ns` is on the clock of the history: the moment at which the forwarder received the response.
`partitions` and `names` (groups, topics) have the error; without both, the whole request has it.
Beside errors of Kafka there are three more: NO_OFFSET, a group without a committed offset there,
which is no error; NONE, the first response without an error after errors of the same API to the
same client; UNREADABLE, a response that cannot be decoded. A line with `left_out` counts the
further responses of its node and API in its second, which have no lines of their own.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

RESPONSES_FILE: Final = "responses.jsonl"
NONE: Final = "NONE"
NO_OFFSET: Final = "NO_OFFSET"
UNREADABLE: Final = "UNREADABLE"
SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResponse:
    """One line. `left_out`: 0, or the number of responses that this line counts."""

    time_ns: int
    node: int
    api: str
    client: str = ""
    version: int = -1
    correlation_id: int = -1
    error: str = ""
    partitions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def until_ns(self) -> int:
        """The end of the time that the line covers: a second, for a line that counts."""
        return (self.time_ns // SECOND_NS + 1) * SECOND_NS if self.left_out else self.time_ns

    @property
    def is_error(self) -> bool:
        """True for a response that the client cannot use."""
        return not self.left_out and self.error not in {NONE, NO_OFFSET}

    def concerns(self, partition: str) -> bool:
        """Return whether it is about this partition: by name, or about a group or a request."""
        return not self.partitions or partition in self.partitions

    @property
    def text(self) -> str:
        """The response in words, without its time."""
        return f"node {self.node} answered {self.api} of client {self.client} with {self.error}"

    def as_json(self) -> dict[str, Any]:
        """Return the object of the line."""
        if self.left_out:
            return {name: getattr(self, name) for name in ("time_ns", "node", "api", "left_out")}
        empty: tuple[object, ...] = (0, ())
        return {
            name: value
            for name, value in asdict(self).items()
            if name in {"time_ns", "node"} or value not in empty
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the response of a line. Raises KeyError, TypeError or ValueError."""
        return cls(
            time_ns=int(row["time_ns"]),
            node=int(row["node"]),
            api=str(row["api"]),
            client=str(row.get("client", "")),
            version=int(row.get("version", -1)),
            correlation_id=int(row.get("correlation_id", -1)),
            error=str(row.get("error", "")),
            partitions=tuple(str(one) for one in row.get("partitions", ())),
            names=tuple(str(one) for one in row.get("names", ())),
            left_out=int(row.get("left_out", 0)),
        )


def shown_response(row: Mapping[str, Any]) -> str:
    """Return a response of a witness in words: a line, with the `count` of such responses."""
    one, count = ErrorResponse.from_json(row), int(row["count"])
    times = f" ({count} times, from then on)" if count > 1 else ""
    return f"{one.text} at {one.time_ns / SECOND_NS:.3f} s{times}"


def read_responses(directory: Path) -> list[ErrorResponse]:
    """Return the lines of a run in order of time; [] without a file.

    A line cut off at the end is left out. Raises ValueError for a file with other contents.
    """
    rows = read_json_lines(directory / RESPONSES_FILE, ErrorResponse.from_json, "response")
    return sorted(rows, key=lambda row: row.time_ns)


def read_json_lines(file: Path, read: Callable[[Any], T], noun: str) -> list[T]:
    """Return the result of `read` for each line of a file, but for a line cut off at the end.

    Returns [] without a file. Raises ValueError with the line that is no `noun`.
    """
    found: list[T] = []
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(read(json.loads(line)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file.name}:{number}: not a {noun}: {error!r}") from error
    return found
