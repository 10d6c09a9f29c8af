"""The names of the models, each with its statement about a valid history.

This module imports no checker: `chaos list` shows the models without numpy and pyarrow.
"""

from collections.abc import Mapping
from typing import Final

from quorumlog.chaos.checkers.models import MODELS, TOPICS


def linearizable_text(model: str) -> str:
    """Return the statement of a sequential model about a valid history."""
    return f"every key is linearizable as a {model}"


TEXTS_OF: Final[Mapping[str, str]] = {
    "strict-serializable": "the transactions are strictly serializable, as far as their reads show",
    "snapshot-isolation": "each transaction reads a snapshot, as far as the reads show",
}
"""By the consistency of transactions, where it is not serializability."""
TEXTS: Final[Mapping[str, str]] = {
    "kafka_log": "every partition is one log with each acknowledged record once, in order",
    "group_log": "the group received every acknowledged record, and its commits were kept",
    "topic_lives": "readers read each life of the topic from its first record on",
    "list_offsets": "offsets by time match the log",
    "wire_rules": "all responses keep the rules of the protocol",
    "authorized": "rights and passwords were in force on every broker once they were changed",
    "mirror": "each acknowledged record has its copy, in order, and groups miss none of them there",
    **{name: linearizable_text(name) for name in MODELS},
    "set": "the last read has every acknowledged element, and only added elements",
    "set-full": "all later reads, or at least the last ones, have every acknowledged element",
    "counter": "every read is a sum of earlier or concurrent adds",
    "bank": "every read finds the same total, and no account below 0",
    TOPICS: linearizable_text(TOPICS),
    "list-append": "the transactions are serializable, as far as their reads show",
    "long-fork": "all reads of a group of keys saw its writes in one order",
    "multi-register": "all transactions on a set of registers have an order in real time",
    "rw-register": "the transactions are serializable, as far as their reads show",
}
