"""A decision on its way into the log: encoded and applied slice by slice, appended in one piece.

Its records are one batch. So a controller that dies, or is deposed, leaves all of them or none:
Kafka writes a begin and an end of a transaction around them instead (KIP-868).
"""

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar, Final

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.requests import Decision
from quorumlog.metadata_quorum.driver.seams import Ask
from quorumlog.metadata_quorum.image.records import MetadataRecord, encode_record
from quorumlog.wire.codec.identifiers import Offset


class Enactment:
    """One decision, until it is in the log. `ask`: the request that it answers, if there is one.

    Between two slices the event loop goes on, but nothing else is decided: it would be decided on
    half of this. Only the controller that is to append the records has applied them meanwhile.
    """

    at_once: ClassVar[int] = 1000
    """How many records a slice has.

    More than a slice of a death, or of a registration, which names its own offset: so that none of
    them is cut. Behind the first slice a record may get a later offset than it is applied at,
    because the quorum may append a change of its voters meanwhile.
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
        """Begin with `records`: those of the decision, or what confirms one without records."""
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
        """Encode and apply the next records. Raises whatever a record that does not fit does."""
        for record in islice(self._left, self.at_once):
            value = encode_record(record)
            self._controller.apply(Offset(self._base_offset + len(self.values)), record)
            self.values.append(value)
