"""The form of every decision of the controller."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from quorumlog.metadata_quorum.image.records import MetadataRecord

ResponseT_co = TypeVar("ResponseT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[ResponseT_co]):
    """Records to append and apply, and the response to send once they are committed.

    The records may be split over several batches. So after each prefix of them the metadata is
    legal, and the rest is decided again. `remark`: a log line for the operator. `goes_on`: this is
    a slice; once it is committed, decide again, and send the response of the last slice.
    """

    response: ResponseT_co
    records: tuple[MetadataRecord, ...] = ()
    remark: str | None = None
    goes_on: bool = False
