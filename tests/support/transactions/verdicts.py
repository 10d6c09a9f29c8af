"""The responses that the KIPs require: `model`, by the kind of the request."""

from typing import Any

from quorumlog.broker.transactions.core.requests import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
)
from tests.support.transactions import model as kips
from tests.support.transactions.model import Model, Verdict


def verdict_on(
    request: Any, model: Model | None, *, is_busy: bool, now_ms: int, level: int
) -> Verdict:
    match request:
        case InitProducerId(expected=named, transaction_timeout_ms=timeout_ms):
            return kips.on_init(model, is_busy, named, timeout_ms, level)
        case AddPartitions(producer=producer, partitions=partitions):
            return kips.on_add(model, is_busy, producer, partitions, now_ms)
        case EndTransaction(producer=producer, commit=commit):
            bumps = request.client_transaction_version == 2
            return kips.on_end(model, is_busy, producer, commit, bumps)
        case _:
            raise AssertionError(request)
