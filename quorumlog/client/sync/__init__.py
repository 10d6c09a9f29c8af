"""The same clients for code without an event loop.

All blocking clients share one thread with one event loop, which runs while a client is open. Every
method blocks until the asynchronous method has ended, and raises the same errors; `send` of a
producer returns without a call to the loop, unless it must wait. Threads may share a producer or an
admin. A call from a coroutine works, but blocks the coroutine's event loop.
"""

from quorumlog.client.sync.admin import SyncAdmin
from quorumlog.client.sync.consumer import SyncConsumer
from quorumlog.client.sync.producer import SyncDeliveries, SyncDelivery, SyncProducer
from quorumlog.client.sync.transforms import transform

__all__ = [
    "SyncAdmin", "SyncConsumer", "SyncDeliveries", "SyncDelivery", "SyncProducer", "transform",
]  # fmt: skip
