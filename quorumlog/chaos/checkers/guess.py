"""The model of a history that names no model, from its operations, if only one model fits.

Operations of Kafka's clients are checked as a log. Operations that fit several other models, or no
model, are an error with the models' names: a history is never checked by a model that only happens
to accept it.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.registry import CHECKERS, DEFAULT_MODEL
from quorumlog.chaos.checkers.transactions import TXN
from quorumlog.chaos.history.model import NEMESIS, HistoryError

_KAFKA_MICRO: Final = frozenset({"send", "poll"})


def guess_model(table: pa.Table) -> str:
    """Return the model of a table of history.schema.OPERATIONS. Raises HistoryError."""
    clients = table.filter(pc.not_equal(table.column("process"), NEMESIS))
    fs = frozenset(pc.unique(clients.column("f")).to_pylist())
    micros: frozenset[str] = frozenset()
    if TXN in fs:
        transactions = clients.filter(pc.equal(clients.column("f"), TXN)).column("micro")
        flat = pc.list_flatten(transactions)
        micros = frozenset(pc.unique(pc.struct_field(flat, "f")).to_pylist())
    if not fs or (TXN in fs and micros and micros <= _KAFKA_MICRO):
        return DEFAULT_MODEL
    fits = [
        name
        for name, checker in CHECKERS.items()
        if fs <= checker.operations and micros <= checker.micros
    ]
    if DEFAULT_MODEL in fits:  # workloads name the narrower models of a log themselves
        return DEFAULT_MODEL
    # A model with operations that this history lacks gives way to one without them.
    fits = [
        name
        for name in fits
        if not any(CHECKERS[other].operations < CHECKERS[name].operations for other in fits)
    ]
    if len(fits) == 1:
        return fits[0]
    said = ", ".join(sorted((fs - {TXN}) | micros))
    if fits:
        raise HistoryError(
            f"its operations ({said}) fit several models: choose one of {', '.join(fits)} "
            "with --model"
        )
    raise HistoryError(f"no model has the operations {said}; the models are {', '.join(CHECKERS)}")
