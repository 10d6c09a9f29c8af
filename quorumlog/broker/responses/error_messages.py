"""Error messages of responses, cut to their greatest length."""

from typing import Final

MESSAGE_MAX: Final = 1000  # characters


def shortened(message: str | None) -> str | None:
    """Return an error message that fits its field, though it may quote what the client sent."""
    return (
        message if message is None or len(message) <= MESSAGE_MAX else message[:MESSAGE_MAX] + "..."
    )
