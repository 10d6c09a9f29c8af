"""An operation of a history: Jepsen's model, with Kafka's topic-partitions as keys.

An operation is two events: an `invoke`, then one completion by the same process:

  ok    it happened, and these are its results;
  fail  it did not happen and never will (only when the client's error is definite);
  info  it may or may not have happened. An operation without a completion counts as `info`.

A process does one operation at a time. Where Jepsen starts a new process number after an `info`, a
workload may keep the number: no checker orders an `info` before later operations.

`f`, and its micro-operations:

  send        the sent records. In an `ok` each message has the offset in the broker's response. In
              an `info`, a message with an offset was acknowledged; a message without one may or may
              not be in the log.
  poll        the returned records, in the order in which they were returned.
  final_poll  a poll of the last phase: after all faults are healed, a reader with no group reads
              every key from its beginning.
  final_end   requests the ends of these keys, after their final polls. `ok`: the offset of each is
              the log end offset (exclusive) at that moment, and the final reader has read all
              records below. A record that was acknowledged before the request, and is unread, is
              lost.
  assign      the keys that the process reads from now on (offset and value have no meaning);
  subscribe   the same, by a group: rebalances may move its position.
  seek        the keys whose position is changed. A reader that does not begin at the beginning, or
              at its group's position, records a seek: it proves nothing about lower offsets.
  txn         the sends and polls of a transaction, each with its own `f`: all of them happened or
              none. In an `info` the outcome is unknown, even where an offset is given. Besides:
              `offsets`, the offset that it commits for a group in a key; `commit`, when the commit
              was requested (the value: ns since the start of the history).
  committed   requests a group's committed offsets; -1: no offset.
  create, delete   a change of a topic: the value is DONE, or REFUSED because the topic exists, or
              does not.
  crash       the client is discarded and replaced: all its positions are forgotten.

A poll during which its group rebalanced has details = "rebalanced".

Values are unique per key. The nemesis is process -1; an event of it is an operation by itself:
`info`, f is the fault (`kill`, `pause`, `partition`, ...) or its end (`start`, `resume`, `heal`),
`node` is its target.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

NEMESIS: Final = -1
UNKNOWN_OFFSET: Final = -1
INVOKE: Final = "invoke"
OUTCOMES: Final = ("ok", "info", "fail")
TYPES: Final = (INVOKE, *OUTCOMES)
NEVER_NS: Final = 1 << 62  # the completion time of an operation that never completed
REBALANCED: Final = "rebalanced"
MEMBER: Final = "member"  # details of a poll by a member of a group without a rebalance
COPIED_ONCE: Final = "copy_once"  # the micro-operation of a copy, of a mirror that copies once
DONE: Final = 1  # the value of a successful creation or deletion of a topic
REFUSED: Final = 0  # of one that fails because the topic exists already, or does not exist
IN_TXN: Final = "txn"  # details of a send or a poll that is a whole transaction
_OPTIONAL: Final = ("text", "f", "checksum")
_ALWAYS: Final = ("index", "time_ns", "process", "type", "f")  # in a JSON line, even if 0


class HistoryError(Exception):
    """A history cannot be read; the message names the file, and the line where there is one."""


class Message(NamedTuple):
    """One micro-operation: in Kafka, one record as a client sees it.

    `key` is the topic-partition, such as `orders-3`. `text` is the value as canonical JSON if it is
    no integer (`value` is 0 then). `f` is "" if it equals the operation's. `checksum`: of the
    record's key, headers and timestamp, see `checksum_of`; 0: none.
    """

    key: str
    offset: int
    value: int
    text: str = ""
    f: str = ""
    checksum: int = 0

    def as_json(self) -> dict[str, object]:
        """Return the object for a JSON line, without an empty `text`, `f` or `checksum`."""
        row: dict[str, object] = {"key": self.key, "offset": self.offset, "value": self.value}
        return row | {name: said for name in _OPTIONAL if (said := getattr(self, name))}


def checksum_of(
    key: bytes | None, headers: Iterable[tuple[str, bytes | None]], timestamp_ms: int
) -> int:
    """Return the checksum of all parts of a record but its value: from 1 to 2^32."""
    parts = (key, *(tuple(header) for header in headers), timestamp_ms)
    return zlib.crc32(repr(parts).encode()) + 1


def number_or_text(value: object) -> tuple[int, str]:
    """Return the `value` and the `text` of a message: 0 and canonical JSON unless it fits int64."""
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value, ""
    return 0, json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One event: an invocation, a completion, or an action of the nemesis.

    `index` counts the events from 0; `time_ns` counts from the start of the history, on one clock.
    """

    index: int
    time_ns: int
    process: int
    type: str
    f: str
    messages: tuple[Message, ...] = ()
    error: str = ""
    node: str = ""
    details: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the object for a JSON line, without empty fields."""
        row = {name: getattr(self, name) for name in self.__slots__ if name != "messages"}
        row["micro"] = [message.as_json() for message in self.messages]
        return {name: value for name, value in row.items() if name in _ALWAYS or value}
