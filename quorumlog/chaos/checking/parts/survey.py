"""The first pass over a history in parts: validation, and the facts that all parts share."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.checkers.fault_bands import nemesis_of
from quorumlog.chaos.checkers.fault_phase import Acks, acks_of, joined
from quorumlog.chaos.checking.parts.plan import Extent
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.history.validate import PartFacts, merge_facts, part_facts

_LARGE: Final = 0.01  # the share of a part's micro-operations that makes a key large


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one part: facts to check with those of other parts, and data that others need.

    context: see checker.Runs; None: the checker has none.
    extents: of the large keys. acks: see checkers.fault_phase.
    """

    facts: PartFacts | None
    nemesis: pa.Table
    acks: Acks
    context: pa.Table | None
    extents: Mapping[str, Extent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The joined results of all parts."""

    nemesis: pa.Table
    acks: Acks
    context: pa.Table
    extents: Mapping[str, Extent]


def look(part: pa.Table, checker: Checker) -> Look:
    """Check a run of whole operations, and return the data that the other parts need.

    Raises HistoryError.
    """
    facts = part_facts(part)
    return Look(
        facts=facts,
        nemesis=nemesis_of(part),
        acks=acks_of(part),
        context=checker.runs.context(part) if checker.runs else None,
        extents=dict(_extents(part)),
    )


def _extents(part: pa.Table) -> Iterator[tuple[str, Extent]]:
    """Yield the large keys."""
    micro = pc.list_flatten(part.column("micro")).combine_chunks()
    offset = micro.field("offset")
    placed = pc.if_else(pc.greater_equal(offset, 0), offset, pa.scalar(None, pa.int64()))
    table = pa.table({"key": micro.field("key"), "offset": placed})
    counted = table.group_by("key", use_threads=False).aggregate(
        [("key", "count"), ("offset", "count"), ("offset", "min"), ("offset", "max")]
    )
    is_large = pc.greater(counted.column("key_count"), _LARGE * len(micro))
    for row in counted.filter(is_large).to_pylist():
        size, low, high = row["key_count"], row["offset_min"], row["offset_max"]
        bounds = (0, -1) if low is None else (low, high)
        yield row["key"], Extent(size, size - row["offset_count"], *bounds)


def survey_of(looks: Iterable[Look], checker: Checker) -> Survey:
    """Check the parts against each other, in their order, and join their results.

    Raises HistoryError.
    """
    held = list(looks)
    merge_facts(one.facts for one in held)
    none = OPERATIONS.empty_table()
    context = pa.concat_tables([none, *(one.context for one in held if one.context is not None)])
    extents: dict[str, Extent] = {}
    for one in held:
        for key, extent in one.extents.items():
            extents[key] = extents[key].joined(extent) if key in extents else extent
    return Survey(
        nemesis=pa.concat_tables([none, *(one.nemesis for one in held)]),
        acks=joined(one.acks for one in held),
        context=checker.runs.context(context) if checker.runs else none,
        extents=extents,
    )
