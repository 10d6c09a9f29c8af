"""TLS of listeners: Kafka's settings `ssl.*` (KIP-651), and the roles on control listeners."""

import re
from typing import Final

OPERATOR: Final = "operator"
"""The alternative name of a certificate for status, metrics and waits on control listeners."""
_NODE_ROLE: Final = re.compile(r"node-[0-9]+")


def node_role(node_id: int) -> str:
    """Return the alternative name of a node's certificate on control listeners."""
    return f"node-{node_id}"


def is_control_role(name: str) -> bool:
    """Whether a certificate's alternative name gives it a role on control listeners."""
    return name == OPERATOR or _NODE_ROLE.fullmatch(name) is not None
