"""The columns of the events of another tool's history, filled event by event."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.history.model import Message
from quorumlog.chaos.history.schema import EVENTS, MICRO


class EventColumns:
    """Columns of schema.EVENTS as lists: an object per record costs ten times as much.

    An event's micro-operations are added before the event itself. Micro-operations are rows of
    (f, key, offset, value, text), as in schema.MICRO.
    """

    def __init__(self) -> None:
        self.f: Final[list[str]] = []
        self.details: Final[list[str]] = []
        self.micro_f: Final[list[str]] = []
        self.key: Final[list[str]] = []
        self.offset: Final[list[int]] = []
        self.value: Final[list[int]] = []
        self.text: Final[list[str]] = []
        self._ends: Final[list[int]] = [0]
        self._index: Final[list[int]] = []
        self._time_ns: Final[list[int]] = []
        self._process: Final[list[int]] = []
        self._type: Final[list[str]] = []
        self._error: Final[list[str]] = []

    def __len__(self) -> int:
        return len(self._index)

    def add_messages(self, f: str, messages: Iterable[Message]) -> None:
        """Add micro-operations of the next event, whose `f` is that of messages without one."""
        for message in messages:
            self.add_record(message.f or f, message.key, message.offset, message.value)
            self.text[-1] = message.text

    def add_record(self, f: str, key: str, offset: int, value: int) -> None:
        """Add one micro-operation of the next event."""
        self.micro_f.append(f)
        self.key.append(key)
        self.offset.append(offset)
        self.value.append(value)
        self.text.append("")

    def add_event(
        self,
        *,
        index: int,
        time_ns: int,
        process: int,
        type_: str,
        f: str,
        error: str = "",
        details: str = "",
    ) -> None:
        """Add an event with the micro-operations since the last one."""
        self._index.append(index)
        self._time_ns.append(time_ns)
        self._process.append(process)
        self._type.append(type_)
        self.f.append(f)
        self._error.append(error)
        self.details.append(details)
        self._ends.append(len(self.key))

    def table(self) -> pa.Table:
        """Return the events as a table of schema.EVENTS.

        The order of the events is their order in the file. Threads take the times, so a time may
        lie before that of the event before it: it becomes the same time.
        """
        time_ns = np.maximum.accumulate(np.array([0, *self._time_ns], np.int64))[1:]
        fields: list[Any] = [self.micro_f, self.key, self.offset, self.value, self.text]
        fields.append(np.zeros(len(self.key), np.int64))  # no checksums
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(fields, MICRO.value_type, strict=True)
        ]
        records = pa.StructArray.from_arrays(arrays, fields=[*MICRO.value_type])
        ends = pa.array(self._ends, pa.int32())
        columns = {
            "index": self._index,
            "time_ns": time_ns,
            "process": self._process,
            "type": self._type,
            "f": self.f,
            "micro": pa.ListArray.from_arrays(ends, records, type=MICRO),
            "error": self._error,
            "node": [""] * len(self),
            "details": self.details,
        }
        return pa.table(columns, schema=EVENTS)
