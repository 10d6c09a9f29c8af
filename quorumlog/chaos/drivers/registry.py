"""Every driver, by name: a new one is a module `<name>_driver` with a `DRIVER`, and a line here.

The module is imported when the driver is used: its library may not be installed.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from quorumlog.chaos.drivers.driver import Driver
from quorumlog.chaos.extras import install_command
from quorumlog.chaos.registered import registered

DRIVERS: Final[Mapping[str, str]] = {
    "client": "quorumlog's own client",
    "confluent": "confluent-kafka (librdkafka)",
}


class DriverUnavailable(Exception):
    """The library is not installed; the message says how to install it."""


def load_driver(name: str) -> Driver:
    """Return a driver by name. Raises DriverUnavailable, or ValueError for a name unknown."""
    registered(DRIVERS, name, "driver")
    try:
        module = import_module(f"quorumlog.chaos.drivers.{name}_driver")
    except ModuleNotFoundError as error:
        raise DriverUnavailable(
            f"driver {name} needs a library that is not installed ({error.name}): "
            f"{install_command('drivers')}"
        ) from error
    driver: Driver = module.DRIVER
    return driver
