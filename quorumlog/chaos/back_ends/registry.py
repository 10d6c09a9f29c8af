"""Every back end for a running cluster, by name; a new one is a file beside this one, named below.

`local_processes` is not among them: it belongs to the cluster that a run starts for itself.
"""

from collections.abc import Mapping
from typing import Any, Final

from quorumlog.chaos.back_ends import commands
from quorumlog.chaos.back_ends.back_end import BackEnd, BackEndKind
from quorumlog.chaos.drivers.security import NO_PROTECTION

BACK_ENDS: Final[Mapping[str, BackEndKind]] = {
    module.BACK_END.name: module.BACK_END for module in (commands,)
}


def open_back_end(
    text: str, bootstrap: str, protection: Mapping[str, Any] = NO_PROTECTION
) -> BackEnd:
    """Open the back end that `NAME:ARGUMENT` names. Raises ValueError with one line to act on.

    `protection`: the arguments of clients of quorumlog for TLS and SASL.
    """
    name, _, argument = text.partition(":")
    if name not in BACK_ENDS or not argument:
        known = "; ".join(f"{kind.name}:{kind.text}" for kind in BACK_ENDS.values())
        raise ValueError(f"--control {text}: write it as NAME:ARGUMENT; there are {known}")
    return BACK_ENDS[name].open(argument, bootstrap, protection)
