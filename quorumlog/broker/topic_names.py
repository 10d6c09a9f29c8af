"""The internal topics, and error messages that quote what a client sent."""

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
MESSAGE_MAX: Final = 1000  # characters


def shortened(message: str | None) -> str | None:
    """Return an error message that fits its field, though it may quote what the client sent."""
    return (
        message if message is None or len(message) <= MESSAGE_MAX else message[:MESSAGE_MAX] + "..."
    )
