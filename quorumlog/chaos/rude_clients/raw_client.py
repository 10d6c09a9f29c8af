"""The parts that all raw clients of a run share: numbers, the history, facts of responses."""

import asyncio
import random
from collections.abc import Iterable
from itertools import count
from typing import Any, Final

from quorumlog.chaos.history import UNKNOWN_OFFSET, HistoryWriter, Message
from quorumlog.chaos.history import exchanges as wire
from quorumlog.chaos.history.exchanges import Exchange, Read
from quorumlog.chaos.rude_clients.cluster_view import ClusterView
from quorumlog.chaos.rude_clients.record_content import digest_of, value_of
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import decode_batches
from quorumlog.wire.io.security import PLAINTEXT, ConnectionSecurity

PAUSE_S: Final = 0.1  # after a failure
_WIRE_PROCESSES: Final = 1_000_000
_MORE_PROCESSES: Final = 2_000_000


class RunNumbers:
    """Numbers that are unique in a run: of values, connections, pairs and processes.

    The processes of exchanges, and of raw clients in the rows of a log, lie far above those of the
    polite clients.
    """

    def __init__(self) -> None:
        self.values: Final = count()
        self.connections: Final = count()
        self.pairs: Final = count()
        self.wire_processes: Final = count(_WIRE_PROCESSES)
        self.processes: Final = count(_MORE_PROCESSES)


class RawClient:
    """A client with its own connections; it does one operation at a time."""

    def __init__(
        self,
        *,
        bootstrap: str,
        topic: str,
        partitions: int,
        rng: random.Random,
        history: HistoryWriter,
        numbers: RunNumbers,
        security: ConnectionSecurity = PLAINTEXT,
    ) -> None:
        self.topic: Final = topic
        self.partitions: Final = partitions
        self.rng: Final = rng
        self.history: Final = history
        self.numbers: Final = numbers
        self.view: Final = ClusterView(
            bootstrap=bootstrap,
            topic=topic,
            rng=rng,
            now_ns=history.elapsed_ns,
            number=lambda: next(numbers.connections),
            security=security,
        )
        self._process: Final = next(numbers.wire_processes)

    def key(self, partition: int) -> str:
        """Return the key of a partition in the history."""
        return f"{self.topic}-{partition}"

    def begin(self, f: str, process: int | None = None) -> None:
        """Write the invocation of an operation on the wire, by the client's process or another."""
        self.history.append(self._process if process is None else process, "invoke", f)

    def end(self, f: str, messages: Iterable[Message], process: int | None = None) -> None:
        """Write its completion, with the responses that are none of the protocol."""
        broken = [
            wire.message(wire.MALFORMED, "connections", UNKNOWN_OFFSET, {"reason": reason})
            for reason in self.view.malformed()
        ]
        by = self._process if process is None else process
        self.history.append(by, "ok", f, [*messages, *broken])

    async def pause(self) -> None:
        """Wait a moment after a failure, then request the metadata anew."""
        await asyncio.sleep(PAUSE_S * self.rng.uniform(0.5, 1.5))
        await self.view.refresh()


def fetched(
    key: str,
    exchange: Exchange,
    offset: int,
    *,
    data: Any = None,
    top_error: int = 0,
    session: tuple[int, int] = (0, -1),
    asked_epoch: int = -1,
    was_asked: bool = True,
    has_room: bool = True,
    pair: int = wire.NO_PAIR,
) -> Message:
    """Return the facts of a partition in a fetch. `data`: None if the response leaves it out."""
    records, spans, corrupt = ([], [], "") if data is None else read_batches(data.records)
    return wire.message(
        wire.FETCHED,
        key,
        offset,
        {
            "exchange": exchange,
            "session_id": session[0],
            "session_epoch": session[1],
            "asked_epoch": asked_epoch,
            "top_error": top_error,
            "error": None if data is None else data.error_code,
            "was_asked": was_asked,
            "has_room": has_room,
            "high_watermark": -1 if data is None else data.high_watermark,
            "records": records,
            "spans": spans,
            "corrupt": corrupt,
            "pair": pair,
        },
    )


def looked_up(
    key: str,
    exchange: Exchange,
    timestamp: int,
    answer: Any,
    *,
    asked_epoch: int = -1,
    pair: int = wire.NO_PAIR,
) -> Message:
    """Return the facts of a partition in a ListOffsets. `answer`: None without a response."""
    return wire.message(
        wire.LOOKED_UP,
        key,
        -1 if answer is None else answer.offset,
        {
            "exchange": exchange,
            "timestamp": timestamp,
            "asked_epoch": asked_epoch,
            "error": None if answer is None else answer.error_code,
            "found_timestamp": -1 if answer is None else answer.timestamp,
            "pair": pair,
        },
    )


def read_batches(data: Buffer | None) -> tuple[list[Read], list[tuple[int, int]], str]:
    """Return the records, (base, last offset) of each batch, and why they are unreadable, or ""."""
    records: list[Read] = []
    spans: list[tuple[int, int]] = []
    try:
        for header, batch in decode_batches(data or b""):
            spans.append((header.base_offset, header.last_offset))
            epoch = header.leader_epoch
            records += [Read(one.offset, value_of(one), digest_of(one), epoch) for one in batch]
    except CorruptBatch as error:
        return records, spans, str(error)
    return records, spans, ""
