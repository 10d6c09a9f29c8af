"""The client libraries that a workload can be run with, behind one small interface.

The broker must not be judged by its own client alone, so the workload sees only this.
"""

from quorumlog.chaos.drivers.base import (
    DRIVERS,
    Driver,
    DriverConsumer,
    DriverProducer,
    DriverUnavailable,
    Message,
    SendFailed,
    load_driver,
)

__all__ = [
    "DRIVERS",
    "Driver",
    "DriverConsumer",
    "DriverProducer",
    "DriverUnavailable",
    "Message",
    "SendFailed",
    "load_driver",
]
