"""The names of the models, each with its statement about a valid history.

This module imports no checker: `chaos list` shows the models without numpy and pyarrow.
"""

from collections.abc import Mapping
from typing import Final

from quorumlog.chaos.checkers.models import MODELS

TOPICS: Final = "topics"


def linearizable_text(model: str) -> str:
    """Return the statement of a sequential model about a valid history."""
    return f"every key is linearizable as a {model}"


TEXTS: Final[Mapping[str, str]] = {
    "kafka_log": "every partition is one log: what was acknowledged is there, once, in order",
    "group_log": "the group was delivered every acknowledged record, and its commits were kept",
    "topic_lives": "each life of the topic was read from its first record on",
    "list_offsets": "offsets by time are those of the log",
    **{name: linearizable_text(name) for name in MODELS},
    "set": "every acknowledged element is in the last read, and nothing else that was not added",
    "set-full": "every acknowledged element is in all later reads, or in the last ones at least",
    "counter": "every read is a sum of adds that it may have seen",
    "bank": "every read finds the same total, and no account below 0",
    TOPICS: linearizable_text(TOPICS),
    "list-append": "the transactions are serializable, as far as their reads tell",
    "rw-register": "the transactions are serializable, as far as their reads tell",
}
