"""A Kafka-compatible cluster that you can break on purpose, with proof of what survived.

The public names are loaded when they are first used: `import quorumlog` is cheap, and loads neither
the broker, nor chaos, nor Spark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.client import Admin, Consumer, Producer
    from quorumlog.cluster import LocalCluster

__version__ = "0.1.0"
__all__ = ["Admin", "Consumer", "LocalCluster", "Producer", "__version__"]

_HOME = {
    "Admin": "quorumlog.client",
    "Consumer": "quorumlog.client",
    "LocalCluster": "quorumlog.cluster",
    "Producer": "quorumlog.client",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'quorumlog' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
