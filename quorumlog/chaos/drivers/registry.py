"""Every driver, by name: a new one is a module `<name>_driver` with a `DRIVER`, and a line here.

The module has `_` where the name has `-`. It is imported lazily: its library may not be installed.
Other packages add drivers by entry points of the group `quorumlog.drivers`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, Protocol, cast, runtime_checkable

from quorumlog.chaos.drivers.driver import AnyDriver
from quorumlog.chaos.drivers.limits import limited
from quorumlog.chaos.drivers.security import PLAINTEXT
from quorumlog.chaos.registered import AddedParts, registered
from quorumlog.client.security import SecuritySettings
from quorumlog.extras import install_command

DRIVERS: Final[Mapping[str, str]] = {
    "client": "quorumlog's own client",
    "confluent": "confluent-kafka (librdkafka)",
    "aiokafka": "aiokafka",
    "kafka-python": "kafka-python",
}


def _driver_of(name: str, part: object) -> AnyDriver:
    del name
    members = ("capabilities", "producer", "consumer", "create_topic")
    if missing := [member for member in members if not hasattr(part, member)]:
        raise TypeError(f"it is no driver: it has no {', '.join(missing)}")
    return cast(AnyDriver, part)


ADDED_DRIVERS: Final = AddedParts("driver", DRIVERS, _driver_of, "quorumlog.drivers")
"""The drivers of other packages."""


class DriverUnavailable(Exception):
    """The library is not installed; the message has the install command."""


def require_driver(name: str) -> None:
    """Raise ValueError, with the existing names, for an unknown name; import no library."""
    registered({**DRIVERS, **dict.fromkeys(ADDED_DRIVERS.names, "")}, name, "driver")


def load_driver(
    name: str,
    security: SecuritySettings = PLAINTEXT,
    producer: Mapping[str, str] = MappingProxyType({}),
) -> AnyDriver:
    """Return a driver by name, with time limits on its calls, for clusters with this protection.

    `producer`: settings of its producers. Raises DriverUnavailable, or ValueError for an unknown
    name, for files of certificates that cannot be used, for a driver of another package without the
    method `secured`, and for settings that the driver does not have.
    """
    driver = _find(name)
    if producer:
        if not isinstance(driver, Adjustable):
            raise ValueError(f"driver {name} has no settings of producers; client has")
        driver = driver.with_producers(producer)
    if security == PLAINTEXT:
        return limited(driver)
    if not isinstance(driver, Securable):
        raise ValueError(  # noqa: TRY004 - of the run's settings, as an unknown name
            f"driver {name} has no method `secured`: it cannot use TLS or SASL"
        )
    return limited(driver.secured(security))


@runtime_checkable
class Adjustable(Protocol):
    """A driver whose producers have settings."""

    def with_producers(self, settings: Mapping[str, str]) -> AnyDriver:
        """Return the same driver with these settings of producers. Raises ValueError."""


@runtime_checkable
class Securable(Protocol):
    """A driver that can reach clusters with TLS and SASL."""

    def secured(self, security: SecuritySettings) -> AnyDriver:
        """Return the same driver for clusters with this protection."""


def _find(name: str) -> AnyDriver:
    require_driver(name)
    if (added := ADDED_DRIVERS.find(name)) is not None:
        return added
    try:
        module = import_module(f"quorumlog.chaos.drivers.{name.replace('-', '_')}_driver")
    except ModuleNotFoundError as error:
        raise DriverUnavailable(
            f"driver {name} needs a library that is not installed ({error.name}): "
            f"{install_command('drivers')}"
        ) from error
    return cast(AnyDriver, module.DRIVER)


class Demanding(Protocol):
    """An object that requires a driver with these capabilities: a workload."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def requires(self) -> frozenset[str]:
        """Names of drivers.driver.CAPABILITIES."""


def check_capable(name: str, workload: Demanding) -> None:
    """Raise ValueError, with the capable drivers, if a driver lacks a required capability."""
    missing = workload.requires - load_driver(name).capabilities
    if missing:
        able = ", ".join(other for other in DRIVERS if _can(other, workload.requires))
        raise ValueError(
            f"workload {workload.name} needs a driver that can {', '.join(sorted(missing))}, and "
            f"{name} cannot; {able or 'none that is installed'} can"
        )


def _can(name: str, requires: frozenset[str]) -> bool:
    try:
        return requires <= load_driver(name).capabilities
    except DriverUnavailable:
        return False
