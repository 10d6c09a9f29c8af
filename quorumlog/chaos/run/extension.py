"""The rule by which a run extends its faults: enough acknowledgements must lie among them.

A slow machine acknowledges little while nodes come and go, and few acknowledgements prove little.
They count from the first fault to the end of the last one: a kill tests the acknowledgements before
it as well. Pure: it receives counts.
"""

from typing import Final

EXTENDS_TO: Final = 3.0
"""The longest time of the faults, as a multiple of the requested duration."""
_SHARE: Final = 0.1


def required_by_default(rate: float, duration_s: float) -> int:
    """Return the required acknowledgements: a tenth of the operations offered in the duration."""
    return round(rate * duration_s * _SHARE)


class AcksInFaults:
    """Counts the acknowledgements from the first fault on, up to the time between two looks.

    required: their number at which the run has tested enough.
    """

    def __init__(self, required: int) -> None:
        self.required: Final = required
        self.count = 0
        self._seen = 0

    def observe(self, acknowledged: int, *, is_breaking: bool) -> None:
        """Record the number of acknowledgements so far, and whether they lie among faults."""
        self.count += acknowledged - self._seen if is_breaking else 0
        self._seen = acknowledged

    @property
    def are_too_few(self) -> bool:
        """Whether the faults must go on."""
        return self.count < self.required
