"""Remembers the active controller's responses, and gives them again to repeated requests.

A client repeats a request when the response is late; the first request may still wait for its
commit. If the controller decided both, a repeated creation would fail because its own topic exists,
and a repeated deletion could delete a topic that was created in between.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from quorumlog.wire.codec.identifiers import Offset

# DEVIATION: Kafka's controller repeats no response: its brokers wait for one.
# docs/decisions/0007-controller-retries.md
ANSWERS_MAX: Final = 1000
ID_CHARS_MAX: Final = 100
RECORDS_MAX: Final = 100_000  # of all remembered decisions together: they bound the responses' size


class Remembered(NamedTuple):
    """A response that is valid once all records below `end_offset` are committed."""

    end_offset: Offset
    response: object
    records: int  # their number in the decision


class RememberedAnswers:
    """The responses of one leader epoch: the newest, up to ANSWERS_MAX and RECORDS_MAX records."""

    def __init__(self) -> None:
        self._answers: Final[OrderedDict[str, Remembered]] = OrderedDict()
        self._records = 0

    def get(self, request_id: str | None) -> Remembered | None:
        """Return the response to the request of this id, if it is remembered."""
        return None if request_id is None else self._answers.get(request_id)

    def add(self, request_id: str, answer: Remembered) -> None:
        """Remember a response, and drop the oldest if there are too many."""
        if len(request_id) > ID_CHARS_MAX:
            return  # a client of this project sends short ids
        self._answers[request_id] = answer
        self._records += answer.records
        while len(self._answers) > ANSWERS_MAX or self._records > RECORDS_MAX:
            _, oldest = self._answers.popitem(last=False)
            self._records -= oldest.records
