"""A node that changes a byte in one of twenty answers that it gives to consumers.

The log is whole, and followers get it as it is. `quorumlog chaos run --mutant spoils-reads` must
end invalid: a consumer that checks what it gets reports CORRUPT_MESSAGE.
"""

import random
import sys
from collections.abc import Sequence
from typing import Final

from quorumlog.chaos.mutants.consumers import with_changed_fetches
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.messages.fetch import FetchResponse

Chunk = bytes | bytearray | memoryview
_SHARE: Final = 0.05
_rng: Final = random.Random(1)  # noqa: S311 - no secret


def joined(records: Chunk | Sequence[Chunk]) -> bytearray:
    """Return what was read in one piece."""
    chunks = [records] if isinstance(records, Chunk) else records
    return bytearray(b"".join(chunks))


def spoil(response: FetchResponse) -> FetchResponse:
    """Change the last byte of some of the records."""
    for topic in response.responses:
        for partition in topic.partitions:
            if partition.records and _rng.random() < _SHARE:
                spoilt = joined(partition.records)
                spoilt[-1] ^= 1
                partition.records = bytes(spoilt)
    return response


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Substitutes(handlers=with_changed_fetches(spoil))))
