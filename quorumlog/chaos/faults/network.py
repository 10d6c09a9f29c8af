"""Faults of a network that a back end owns: messages are lost, doubled, late, or cut off.

Rates are in parts per million of the messages; delays are in microseconds of one direction. A
fault without a target applies to every link: its target is `all`.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import ALL, MILLION, Fault, check_range

_DELAY_US_MAX: Final = 60 * MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Fault):
    """Each message is lost with this probability."""

    name: ClassVar[str] = "loss"
    text: ClassVar[str] = "messages are lost"
    targets: ClassVar[tuple[str, ...]] = (ALL,)
    ppm: int

    def __post_init__(self) -> None:
        check_range("ppm", self.ppm, 0, MILLION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplication(Fault):
    """Each message arrives a second time with this probability."""

    name: ClassVar[str] = "duplication"
    text: ClassVar[str] = "messages arrive twice"
    targets: ClassVar[tuple[str, ...]] = (ALL,)
    ppm: int

    def __post_init__(self) -> None:
        check_range("ppm", self.ppm, 0, MILLION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Fault):
    """Each message takes from `min_us` to `min_us + spread_us`."""

    name: ClassVar[str] = "delay"
    text: ClassVar[str] = "messages take long"
    targets: ClassVar[tuple[str, ...]] = (ALL,)
    min_us: int
    spread_us: int

    def __post_init__(self) -> None:
        check_range("min_us", self.min_us, 0, _DELAY_US_MAX)
        check_range("spread_us", self.spread_us, 0, _DELAY_US_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorder(Fault):
    """A message is `late_us` later than its delay says, with this probability."""

    name: ClassVar[str] = "reorder"
    text: ClassVar[str] = "some messages arrive much later than those sent after them"
    targets: ClassVar[tuple[str, ...]] = (ALL,)
    ppm: int
    late_us: int

    def __post_init__(self) -> None:
        check_range("ppm", self.ppm, 0, MILLION)
        check_range("late_us", self.late_us, 0, _DELAY_US_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Fault):
    """No message passes between the target nodes and all others, in either direction."""

    name: ClassVar[str] = "partition"
    text: ClassVar[str] = "some nodes and the others cannot reach each other"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWayCut(Fault):
    """All messages from the target nodes to the others are lost (`out`), or the reverse (`in`)."""

    name: ClassVar[str] = "one_way_cut"
    text: ClassVar[str] = "what a node sends is lost, or what is sent to it"
    direction: Literal["in", "out"]


FAULTS: Final = (Loss, Duplication, Delay, Reorder, Partition, OneWayCut)
