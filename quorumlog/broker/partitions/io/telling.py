"""Applies an image to the replicas in slices, one for each turn of the event loop."""

import asyncio
from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.wire.codec.identifiers import TopicPartition


class Telling:
    """`told` receives the partitions of each slice after the slice is applied."""

    def __init__(
        self, replicas: ReplicaSet, *, told: Callable[[list[TopicPartition]], None]
    ) -> None:
        self._replicas: Final = replicas
        self._told: Final = told
        self._is_due = False

    def go_on(self, first: list[TopicPartition]) -> None:
        """Report the first slice of an image; schedule the others."""
        self._told(first)
        if self._replicas.has_untold and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._tell_slice)

    def _tell_slice(self) -> None:
        self._is_due = False
        if self._replicas.has_untold:
            self.go_on(self._replicas.tell_slice())
