"""Faults of leadership: a leader resigns, or a follower wrongly hears that its leader died."""

from dataclasses import dataclass
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign(Fault):
    """The target is asked to resign its leadership."""

    name: ClassVar[str] = "resign"
    text: ClassVar[str] = "a leader is asked to resign"


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseNotice(Fault):
    """The target gets a false notice that its leader's process died (decision 0009)."""

    name: ClassVar[str] = "false_notice"
    text: ClassVar[str] = "a node gets a false notice that its leader's process died"


FAULTS: Final = (Resign, FalseNotice)
