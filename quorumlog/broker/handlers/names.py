"""Names that several handlers check or must recognise."""

import re
from typing import Final

from quorumlog.broker.core.groups.partitioning import OFFSETS_TOPIC

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka would take it: it becomes the name of a directory."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}
