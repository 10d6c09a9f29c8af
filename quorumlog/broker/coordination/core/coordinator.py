"""The protocol of a core that a shard drives; `groups/core/__init__.py` has the whole contract."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from quorumlog.broker.coordination.core.effects import CoordinatorEffect
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader, Record

R_co = TypeVar("R_co", covariant=True)


class CoordinatorRequest(Protocol[R_co]):
    """A request whose response is an `R_co`."""

    def refuse(self, error_code: ErrorCode) -> R_co:
        """Return a response that carries only `error_code`."""


class Coordinator(Protocol):
    """The coordinator of one partition of an internal topic. Pure.

    Load: `replay_encoded` each committed record, then `loaded`; `step` from then on.
    """

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next tick, if no other event comes first; None: no tick is needed."""

    @property
    def not_written(self) -> Mapping[ErrorCode, ErrorCode]:
        """The append errors after which no record is in the log, each with the code for clients."""

    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        """Apply one committed record; a record of an unknown kind is no error.

        Raises ValueError: the record is malformed.
        """

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Return the key and the value of a record of AppendRecords."""

    def loaded(self, now_ms: int, log_start_offset: int, log_end_offset: int, /) -> None:
        """Start to serve. The replayed records were at [log_start_offset, log_end_offset)."""

    def step(self, now_ms: int, event: Any) -> Sequence[CoordinatorEffect]:
        """Handle one event, shared or of this kind of coordinator; return the effects, in order.

        Raises InvariantViolation: our bug.
        """

    def check_progress(self) -> None:
        """Raise InvariantViolation if something waits, and neither an event nor a tick will come.

        It may walk over all that the coordinator has: tests and simulations call it.
        """


@runtime_checkable
class ReplaysTransactions(Protocol):
    """A coordinator whose log may hold transactions of producers."""

    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        """Apply one committed batch of a transaction, or its marker.

        Compaction may have removed the record of a marker's batch. Raises ValueError: a record is
        malformed.
        """
