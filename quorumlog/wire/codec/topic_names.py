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
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Return whether a topic may have this name, which becomes the name of a directory."""
    return topic_name_error(name) is None


def topic_name_error(name: str) -> str | None:
    """Return Kafka's error message for a topic's name, or None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in {".", ".."}:
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length "
            f"{NAME_LENGTH_MAX}"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None
