"""Faults of leadership: a leader resigns, or a follower wrongly hears that its leader died."""

from typing import Final

from quorumlog.chaos.faults.fault import Fault, named


@named("resign", "a leader is asked to resign")
class Resign(Fault):
    """The target is asked to resign its leadership."""


@named("false_notice", "a node gets a false notice that its leader's process died")
class FalseNotice(Fault):
    """The target gets a false notice that its leader's process died (decision 0009)."""


FAULTS: Final = (Resign, FalseNotice)
