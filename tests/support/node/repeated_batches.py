"""A node that answers each batch in its log as a batch repeated too late: without an offset."""

import sys
from collections.abc import Callable
from typing import Any

from quorumlog.broker.handlers import produce
from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.node.main import main
from quorumlog.wire.codec.error_codes import ErrorCode


def _without_an_offset(take: Callable[..., None]) -> Callable[..., None]:
    def changed(answer: Any, at: Any, slot: Any, result: ProduceResult) -> None:
        if result.error_code is ErrorCode.NONE:
            result = ProduceResult(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        take(answer, at, slot, result)

    return changed


if __name__ == "__main__":
    produce._Answer.take = _without_an_offset(produce._Answer.take)  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
