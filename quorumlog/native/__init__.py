"""The native lane: C functions for the usual bytes. Python functions handle all bytes.

It is optional: it is compiled where a C compiler is, and QUORUMLOG_NATIVE=0 turns it off. The
Python functions are its oracle. Simulations and mutants run without it.
"""

import os
from typing import Any

VARIABLE = "QUORUMLOG_NATIVE"


class _Lane:
    """The functions in use.

    functions: the module `quorumlog.native._lane`; None: Python does everything.
    why_not: the reason, if there are none.
    """

    __slots__ = ("functions", "why_not")

    def __init__(self) -> None:
        self.functions: Any = None
        self.why_not = f"{VARIABLE}=0"
        if os.environ.get(VARIABLE) == "0":
            return
        try:
            from quorumlog.native import _lane  # type: ignore[attr-defined]
        except ImportError:
            self.why_not = "not compiled: no C compiler was found when it was installed"
        else:
            self.functions = _lane

    @property
    def state(self) -> str:
        """Return "on", or why it is not."""
        return self.why_not if self.functions is None else "on"

    def turn_off(self, why_not: str) -> None:
        """Use Python alone, from now on."""
        self.functions, self.why_not = None, why_not


lane = _Lane()
