"""Losses that only the error of a read proves: see reader_lives.loss_errors."""

import numpy as np

from quorumlog.chaos.checkers.entries import Entries
from quorumlog.chaos.checkers.reader_lives import CORRUPT
from quorumlog.chaos.checkers.verdict import CheckResult
from quorumlog.chaos.checkers.witnesses import Told, invalid

_NOTES = {
    "corrupt-read": "the received bytes fail their checksum",
    "truncated-read": "the log ends below this reader's position",
}


def told_losses(errors: Entries) -> list[CheckResult]:
    """Return `corrupt-read` and `truncated-read`. `errors`: entries of kind ERROR."""
    is_corrupt = np.array([*(name in CORRUPT for name in errors.keys), False])[errors.key]
    results = []
    for name, chosen in (("corrupt-read", is_corrupt), ("truncated-read", ~is_corrupt)):
        found = np.flatnonzero(chosen)

        def tell(n: int, name: str = name, found: np.ndarray = found) -> Told:
            return _NOTES[name], [("failed read", int(found[n]))]

        if len(found):
            results.append(invalid(errors, name, found, tell))
    return results
