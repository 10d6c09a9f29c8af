"""A decision on its way into the log: encoded and applied slice by slice, appended in one piece.

Its records are one batch. So a controller that dies, or is deposed, leaves all of them or none.
Kafka writes transaction records before and after them instead (KIP-868).
"""

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar, Final

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.requests import Decision
from quorumlog.metadata_quorum.driver.dependencies import Ask
from quorumlog.metadata_quorum.image.records import MetadataRecord, encode_record
from quorumlog.wire.codec.identifiers import Offset


class PendingDecision:
    """One decision, until it is in the log. `ask`: the request that it answers, or None.

    Between two slices the event loop continues, but no other decision is made: it would be based on
    half of this one. Only the controller that is to append the records has applied them meanwhile.
    """

    at_once: ClassVar[int] = 1000
    """The number of records in a slice.

    It exceeds the controller slice of a death, or of a registration, which contains its own offset:
    neither is split. Behind the first slice a record may get a later offset than the one at which
    it is applied, because the quorum may append a change of its voters meanwhile.
    """

    def __init__(
        self,
        controller: Controller,
        decision: Decision[object],
        records: Sequence[MetadataRecord],
        *,
        base_offset: Offset,
        ask: Ask | None,
    ) -> None:
        """Start with `records`: the decision's, or the record that confirms one without any."""
        self.decision: Final = decision
        self.ask: Final = ask
        self.values: Final[list[bytes]] = []  # of the records so far
        self._controller: Final = controller
        self._record_count: Final = len(records)
        self._left: Final = iter(records)
        self._base_offset: Final = base_offset

    @property
    def is_whole(self) -> bool:
        """Whether all records are encoded and applied: the values are to be appended now."""
        return len(self.values) == self._record_count

    def take_slice(self) -> None:
        """Encode and apply the next records. Raises any error of a record that does not fit."""
        for record in islice(self._left, self.at_once):
            value = encode_record(record)
            self._controller.apply(Offset(self._base_offset + len(self.values)), record)
            self.values.append(value)
