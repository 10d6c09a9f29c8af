"""Names that several handlers check or must recognise."""

import re
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
MESSAGE_MAX: Final = 1000  # characters
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka would take it: it becomes the name of a directory."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


def shortened(message: str | None) -> str | None:
    """Return an error message that fits its field, though it may quote what the client sent."""
    return (
        message if message is None or len(message) <= MESSAGE_MAX else message[:MESSAGE_MAX] + "..."
    )
