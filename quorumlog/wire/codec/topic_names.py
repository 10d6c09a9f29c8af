"""Which names a topic can have. Source: Kafka's `Topic.validate`."""

import re
from typing import Final

METADATA_TOPIC: Final = "__cluster_metadata"
"""Kafka's name of the metadata log: no topic has it."""
NAME_LENGTH_MAX: Final = 249  # with "-" and a partition, a directory name of 255 bytes
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name."""
    return name_problem(name) is None


def name_problem(name: str) -> str | None:
    """Return what is wrong with a topic's name, in Kafka's words, or None."""
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
