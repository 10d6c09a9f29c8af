"""A node that serves consumers nothing in the first 12 s after its start.

Nothing is lost: the verdict may be valid, but it names `late-read`, with how long readers went
without records that had been acknowledged: `quorumlog chaos run --mutant late-reads --fault kill`.
"""

import sys
import time
from typing import Final

from quorumlog.chaos.mutants.consumers import with_changed_fetches
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.messages.fetch import FetchResponse

_SILENT_S: Final = 12.0
_started_s: Final = time.monotonic()


def keep_back(response: FetchResponse) -> FetchResponse:
    """Leave the records out while the process is young."""
    if time.monotonic() - _started_s < _SILENT_S:
        for topic in response.responses:
            for partition in topic.partitions:
                partition.records = b""
    return response


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Substitutes(handlers=with_changed_fetches(keep_back))))
