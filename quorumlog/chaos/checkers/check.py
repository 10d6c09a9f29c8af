"""The check of a whole history in this process."""

import pyarrow as pa

from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.registry import DEFAULT_MODEL, find_checker
from quorumlog.chaos.checkers.verdict import Verdict
from quorumlog.chaos.history.schema import CUT_OFF, ENDED, FINAL_READS


def check_history(table: pa.Table, model: str = DEFAULT_MODEL) -> Verdict:
    """Check a table of history.schema.OPERATIONS. Raises ValueError for an unknown model."""
    checker = find_checker(model)
    metadata = table.schema.metadata or {}
    marked = metadata.get(FINAL_READS, b"marked") == b"marked"
    partial = checker.check_keys(checker.explode(table), final_reads_marked=marked)
    return checker.conclude(
        [partial],
        fault_bands(table),
        final_reads_marked=marked,
        cut_off=CUT_OFF in metadata,
        ended=ENDED in metadata,
    )
