"""The check of a whole history in this process."""

import pyarrow as pa

from quorumlog.chaos.checkers.checker import Checker, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.registry import DEFAULT_MODEL, find_checker
from quorumlog.chaos.checkers.verdict import Verdict


def check_history(table: pa.Table, model: str | Checker = DEFAULT_MODEL) -> Verdict:
    """Check a table of history.schema.OPERATIONS. Raises ValueError for an unknown model."""
    checker = find_checker(model) if isinstance(model, str) else model
    facts = facts_of(table.schema.metadata)
    partial = checker.check(checker.explode(table), facts)
    return checker.conclude([partial], fault_bands(table), facts)
