"""The same clients for code without an event loop.

All of them share one thread with one event loop, which is there while any of them is open. Every
method blocks until the asynchronous one is done, and raises what it raises. Threads may share a
producer or an admin. A call from a coroutine works, but its event loop stands still meanwhile.
"""

from quorumlog.client.sync.admin import SyncAdmin
from quorumlog.client.sync.consumer import SyncConsumer
from quorumlog.client.sync.producer import SyncDelivery, SyncProducer

__all__ = ["SyncAdmin", "SyncConsumer", "SyncDelivery", "SyncProducer"]
