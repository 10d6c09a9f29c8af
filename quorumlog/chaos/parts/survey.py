"""The first look at a history in parts: whether it is one, and what the nemesis did."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.history.model import NEMESIS
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.history.validate import PartFacts, merge_facts, part_facts


@dataclass(slots=True, kw_only=True)
class Look:
    """What one part shows: facts to be checked with those of the others, and the nemesis."""

    facts: PartFacts | None
    nemesis: pa.Table


def look(part: pa.Table) -> Look:
    """Check a run of whole operations, and keep what others must know. Raises HistoryError."""
    facts = part_facts(part)
    return Look(facts=facts, nemesis=part.filter(pc.field("process") == NEMESIS))


def nemesis_of(looks: Iterable[Look]) -> pa.Table:
    """Check the parts against each other, in their order; return what the nemesis did.

    Raises HistoryError.
    """
    held = list(looks)
    merge_facts(one.facts for one in held)
    return pa.concat_tables([OPERATIONS.empty_table(), *(one.nemesis for one in held)])
