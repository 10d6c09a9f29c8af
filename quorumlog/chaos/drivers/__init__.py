"""The client libraries that a workload can be run with, behind one small interface.

The broker must not be judged by its own client alone, so the workload sees only this.
"""

from quorumlog.chaos.drivers.driver import (
    Driver,
    DriverConsumer,
    DriverProducer,
    DriverUnavailable,
    Record,
    SendFailed,
)
from quorumlog.chaos.drivers.registry import DRIVERS, load_driver

__all__ = [
    "DRIVERS",
    "Driver",
    "DriverConsumer",
    "DriverProducer",
    "DriverUnavailable",
    "Record",
    "SendFailed",
    "load_driver",
]
