"""The protocol of a core that a shard drives; `groups/core/__init__.py` has the whole contract."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from quorumlog.broker.coordination.core.effects import CoordinatorEffect
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader, Record

R_co = TypeVar("R_co", covariant=True)


class CoordinatorRequest(Protocol[R_co]):
    """A request that is answered by an `R_co`."""

    def refuse(self, error_code: ErrorCode) -> R_co:
        """Return an answer that carries only `error_code`."""


class Coordinator(Protocol):
    """The coordinator of one partition of an internal topic. Pure.

    Load: `replay_encoded` each committed record, then `loaded`; `step` from then on.
    """

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next tick, if nothing else happens; None: no tick is needed."""

    @property
    def not_written(self) -> Mapping[ErrorCode, ErrorCode]:
        """The errors of an append that mean "not in the log", each with the code for clients."""

    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        """Apply one committed record; a record of an unknown kind is no error.

        Raises ValueError: the record cannot be read.
        """

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Return key and value of a record of AppendRecords."""

    def loaded(self, now_ms: int, log_start_offset: int, log_end_offset: int, /) -> None:
        """Start to serve. What was replayed was at [log_start_offset, log_end_offset)."""

    def step(self, now_ms: int, event: Any) -> Sequence[CoordinatorEffect]:
        """Handle one event, shared or its own; return the effects, in order.

        Raises InvariantViolation: our bug.
        """


@runtime_checkable
class ReplaysTransactions(Protocol):
    """A coordinator whose log may hold transactions of producers."""

    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        """Apply one committed batch of a transaction, or its marker.

        Compaction may have left a marker's batch without its record. Raises ValueError: a record
        cannot be read.
        """
