"""The rules for names of topics, and the names of Kafka's internal topics.

Source: org.apache.kafka.common.internals.Topic.
"""

import re
from typing import Final

METADATA_TOPIC: Final = "__cluster_metadata"
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
NAME_LENGTH_MAX: Final = 249  # with "-" and a partition, a directory name of 255 bytes
_SHOWN_MAX: Final = 1_000  # characters
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Return whether a topic may have this name, which becomes the name of a directory."""
    return topic_name_error(name) is None


def _shortened(name: str) -> str:
    """Return a name that fits into a message: a response has room for 32,767 bytes."""
    return name if len(name) <= _SHOWN_MAX else f"{name[:NAME_LENGTH_MAX]}..."


def topic_name_error(name: str) -> str | None:
    """Return Kafka's error message for a topic's name, or None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in {".", ".."}:
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return (
            f"Topic name is invalid: the length of '{_shortened(name)}' is longer than the max "
            f"allowed length {NAME_LENGTH_MAX}"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None
