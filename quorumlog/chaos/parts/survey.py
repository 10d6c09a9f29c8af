"""The first look at a history in parts: whether it is one, and what all parts must know of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.history.model import NEMESIS
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.history.validate import PartFacts, merge_facts, part_facts


@dataclass(slots=True, kw_only=True)
class Look:
    """What one part shows: facts to be checked with those of the others, and rows for all."""

    facts: PartFacts | None
    nemesis: pa.Table
    context: pa.Table


@dataclass(slots=True, kw_only=True)
class Survey:
    """What is known of the whole, before anything is checked.

    nemesis: its operations. context: the operations that change what later ones of their process
    mean (checker.Context).
    """

    nemesis: pa.Table = field(default_factory=OPERATIONS.empty_table)
    context: pa.Table = field(default_factory=OPERATIONS.empty_table)


def look(part: pa.Table, checker: Checker) -> Look:
    """Check a run of whole operations, and keep what others must know. Raises HistoryError."""
    facts = part_facts(part)
    nemesis = part.filter(pc.field("process") == NEMESIS)
    context = part.slice(0, 0) if checker.context is None else checker.context.of(part)
    return Look(facts=facts, nemesis=nemesis, context=context)


def survey(looks: Iterable[Look]) -> Survey:
    """Check the parts against each other, in their order. Raises HistoryError."""
    held = list(looks)
    merge_facts(one.facts for one in held)
    if not held:
        return Survey()
    return Survey(
        nemesis=pa.concat_tables([one.nemesis for one in held]),
        context=pa.concat_tables([one.context for one in held]),
    )


def explode_part(checker: Checker, part: pa.Table, context: pa.Table) -> pa.Table:
    """Return the entries of a part. Without a rule for the context, it has whole processes."""
    if checker.context is None:
        return checker.explode(part)
    mine = pc.is_in(context.column("process"), pc.unique(part.column("process")))
    return checker.context.explode(part, context.filter(mine))
