"""The parts of a mirror that a test or a mutant of the chaos lab may replace."""

from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.mirror.core.copies import Copies
from quorumlog.mirror.io.transfer import Transfer
from quorumlog.mirror.settings import MirrorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorDependencies:
    """new_copies: makes the state of the mirror. new_transfer: makes the producers of a session."""

    new_copies: Callable[[], Copies] = Copies
    new_transfer: Callable[[MirrorSettings, Copies, int | None], Transfer] = Transfer


DEPENDENCIES = MirrorDependencies()
