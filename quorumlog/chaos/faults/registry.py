"""Every kind of fault, by name: a new one is a file beside this one and a word in the list."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from quorumlog.chaos.faults import (
    kill,
    kill_all,
    leadership,
    machines,
    network,
    pause,
    pause_kill,
)
from quorumlog.chaos.faults.fault import Fault, ProcessFault

_MODULES: Final = (kill, kill_all, pause_kill, pause, network, machines, leadership)

FAULTS: Final[Mapping[str, type[Fault]]] = MappingProxyType(
    {kind.name: kind for module in _MODULES for kind in module.FAULTS}
)
PROCESS_FAULTS: Final[Mapping[str, type[ProcessFault]]] = MappingProxyType(
    {name: kind for name, kind in FAULTS.items() if issubclass(kind, ProcessFault)}
)


class FaultUnsupported(ValueError):
    """A back end cannot do a fault. The message names the fault, the back end, and what it can."""

    def __init__(self, name: str, back_end: str, can: Iterable[str]) -> None:
        names = ", ".join(sorted(can)) or "nothing"
        super().__init__(f"fault {name}: {back_end} cannot do it; it can do {names}")


def fault_kind(name: str) -> type[Fault]:
    """Return the kind of this name, in which `-` may stand for `_`. Raises ValueError."""
    kind = FAULTS.get(name.replace("-", "_"))
    if kind is None:
        raise ValueError(f"no fault is called {name!r}; there are {', '.join(FAULTS)}")
    return kind


def check_supported(names: Iterable[str], *, back_end: str, can: Iterable[str]) -> None:
    """Raise FaultUnsupported for the first of `names` that is not one of those in `can`."""
    known = set(can)
    for name in names:
        if name not in known:
            raise FaultUnsupported(name, back_end, known)
