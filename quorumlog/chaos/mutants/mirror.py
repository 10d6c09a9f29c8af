"""Mirrors that break one rule each. The workload `mirror` starts them; the nodes have no bug."""

from collections.abc import Sequence
from typing import Any, Final

from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.parts import Parts
from quorumlog.client import ConsumerRecord, TopicPartition
from quorumlog.mirror.core.copies import Copies
from quorumlog.mirror.io.transfer import OwnRecord, Polled, Transfer

_CLASSES: Final = {"new_copies": Copies, "new_transfer": Transfer}


def _broken_mirror(*broken: type[Any]) -> Parts:
    """Return the real parts of a node, and each class in the place of the one that it inherits."""
    return Parts(
        mirror={
            name: one
            for one in broken
            for name, sound in _CLASSES.items()
            if issubclass(one, sound)
        }
    )


MIRRORS: Final = Mutants("mirror", _broken_mirror)


@MIRRORS.breaks("a mirror commits its position before it sends the records")
class _CommitsPositionsFirst(Transfer):
    async def copy(self, polled: Polled, own: Sequence[OwnRecord] = ()) -> int:
        await self.write(
            [
                self._copies.position_record(place, last.offset + 1, last.leader_epoch, ())
                for place, records in polled.items()
                for last in records[-1:]
            ]
        )
        return await super().copy(polled, own)


@MIRRORS.breaks("a group's offset is translated to one record too far")
class _TranslatesOneTooFar(Copies):
    def translate(
        self, place: TopicPartition, offset: int, source_end: int
    ) -> tuple[TopicPartition, int] | None:
        moved = super().translate(place, offset, source_end)
        return None if moved is None else (moved[0], moved[1] + 1)


@MIRRORS.breaks("a mirror that resumes copies its first records in reverse order")
class _ResumesInReverse(Transfer):
    _has_reversed = False

    async def _send(
        self, place: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> tuple[Any, int]:
        if not self._has_reversed and len(records) > 1:
            self._has_reversed = True
            records = records[::-1]
        return await super()._send(place, records)
