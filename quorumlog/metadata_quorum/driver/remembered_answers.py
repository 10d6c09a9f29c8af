"""The answers that an active controller gives again when a request is repeated.

A client asks again when an answer is late; the first request may be waiting for its commit
meanwhile. Decided twice, a creation would be told that its own topic exists, and a deletion would
delete what somebody made anew in between.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from quorumlog.wire.codec.identifiers import Offset

# DEVIATION: Kafka's controller repeats nothing: its brokers wait for one answer.
# docs/decisions/0035-a-repeated-request-gets-the-first-answer.md
ANSWERS_MAX: Final = 1000
ID_CHARS_MAX: Final = 100
RECORDS_MAX: Final = 100_000  # of all remembered decisions together: a response is of that order


class Remembered(NamedTuple):
    """A response that stands when all below `end_offset` is committed."""

    end_offset: Offset
    response: object
    records: int  # how many the decision had


class RememberedAnswers:
    """Of one leader epoch: the newest ANSWERS_MAX at most, with RECORDS_MAX records at most."""

    def __init__(self) -> None:
        self._answers: Final[OrderedDict[str, Remembered]] = OrderedDict()
        self._records = 0

    def get(self, request_id: str | None) -> Remembered | None:
        """Return what was decided on the request of this id, if that is remembered."""
        return None if request_id is None else self._answers.get(request_id)

    def add(self, request_id: str, answer: Remembered) -> None:
        """Remember an answer, and forget the oldest if there are too many."""
        if len(request_id) > ID_CHARS_MAX:
            return  # ours are short
        self._answers[request_id] = answer
        self._records += answer.records
        while len(self._answers) > ANSWERS_MAX or self._records > RECORDS_MAX:
            _, oldest = self._answers.popitem(last=False)
            self._records -= oldest.records
