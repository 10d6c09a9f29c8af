"""The model of a history that names none, from the names of its operations, if only one has them.

What fits several models, or none, is an error that names them: a history is never judged by a model
that only happens to accept it.
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
    # A model with operations that this history has no use for gives way to one without.
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
            f"its operations ({said}) fit more than one model: name one of {', '.join(fits)} "
            "with --model"
        )
    raise HistoryError(f"no model has the operations {said}; there are {', '.join(CHECKERS)}")
