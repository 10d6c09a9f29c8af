"""An operation of a history: Jepsen's model, with Kafka's topic-partitions as keys.

An operation is two events: an `invoke`, then one completion by the same process:
  ok    it happened, and these are its results;
  fail  it did not happen and never will (only when the client's error is definite);
  info  it may or may not have happened. What never completes counts as `info`.
A process does one thing at a time. Where Jepsen starts a new process number after an `info`, a
workload may keep the number: no checker orders an `info` before later operations.

`f`, and what the micro-operations hold:
  send        what was sent. In an `ok` each message has the offset the broker answered. In an
              `info`, one that has an offset was acknowledged, one without may or may not be there.
  poll        what was returned, in the order it was returned.
  final_poll  a poll of the last phase: after all faults are healed, a reader with no group reads
              every key from its beginning.
  final_end   asks where these keys end, after their final polls. `ok`: the offset of each is the
              log end offset (exclusive) at that moment, and the final reader has read all below.
              A record that was acknowledged before the question, and is unread, is lost.
  assign      the keys that the process reads from now on (offset and value mean nothing);
  subscribe   the same, by a group: rebalances may move its position.
  seek        the keys whose position is changed. A reader that does not begin at the beginning, or
              at its group's position, records a seek: it proves nothing about lower offsets.
  txn         what a transaction sent and polled, each with its own `f`: all of it or
              nothing. Of `info` it is not known which, even where an offset is told. Besides:
              `offsets`, what it commits for a group in a key; `commit`, when that was asked for
              (the value: ns since the start of the history).
  committed   asks what a group has committed; -1: nothing.
  create, delete   a change of a topic: the value is DONE, or REFUSED because the topic exists, or
              does not.
  crash       the client is thrown away and replaced: all its positions are forgotten.
A poll during which its group rebalanced says so: details = "rebalanced".

Values are unique per key. The nemesis is process -1; an event of it is an operation by itself:
`info`, f is the fault (`kill`, `pause`, `partition`, ...) or its end (`start`, `resume`, `heal`),
`node` is its target.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

NEMESIS: Final = -1
UNKNOWN_OFFSET: Final = -1
INVOKE: Final = "invoke"
OUTCOMES: Final = ("ok", "info", "fail")
TYPES: Final = (INVOKE, *OUTCOMES)
NEVER_NS: Final = 1 << 62  # the completion time of an operation that never completed
REBALANCED: Final = "rebalanced"
DONE: Final = 1  # the value of a creation or deletion of a topic that the cluster carried out
REFUSED: Final = 0  # of one that fails because the topic exists already, or does not exist
IN_TXN: Final = "txn"  # details of a send or a poll that is a whole transaction
_ALWAYS: Final = ("index", "time_ns", "process", "type", "f")  # in a JSON line, even if 0


class HistoryError(Exception):
    """A history cannot be read; the message names the file, and the line where there is one."""


class Message(NamedTuple):
    """One micro-operation: of Kafka, one record as a client knows it.

    `key` is the topic-partition, such as `orders-3`. `text` is the value as canonical JSON if it is
    no integer (`value` is 0 then). `f` is "" where it is that of the whole operation.
    """

    key: str
    offset: int
    value: int
    text: str = ""
    f: str = ""

    def as_json(self) -> dict[str, object]:
        """Return it as it stands in a JSON line: `text` and `f` only where they say something."""
        row: dict[str, object] = {"key": self.key, "offset": self.offset, "value": self.value}
        return row | {name: said for name in ("text", "f") if (said := getattr(self, name))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One event: an invocation, a completion, or what the nemesis did.

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
        """Return the event as it stands in a JSON line, without empty fields."""
        row = {name: getattr(self, name) for name in self.__slots__ if name != "messages"}
        row["micro"] = [message.as_json() for message in self.messages]
        return {name: value for name, value in row.items() if name in _ALWAYS or value}
