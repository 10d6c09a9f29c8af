"""The InitProducerIds that coordinators received; their responses may have been lost."""

from typing import Final, NamedTuple

from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch


class _Init(NamedTuple):
    """The producer it names, its coordinator, and whether its id may have expired before it."""

    expected: ProducerIdAndEpoch
    coordinator: object
    may_be_first: bool


class Initializations:
    """The InitProducerIds that were not refused, by request number."""

    def __init__(self) -> None:
        self._inits: Final[dict[int, _Init]] = {}

    def came_in(
        self, number: int, expected: ProducerIdAndEpoch, coordinator: object, *, may_be_first: bool
    ) -> None:
        """Record a received request. `may_be_first`: its transactional id may have expired."""
        self._inits[number] = _Init(expected, coordinator, may_be_first)

    def refused(self, number: int) -> None:
        """Remove a request that was refused without a change."""
        self._inits.pop(number, None)

    def may_be_first(self, number: int) -> bool:
        """Return whether this request may get a producer id, whatever producer it names (KIP-360).

        It may be the first of an expired id: the coordinator has dropped the earlier producers.
        """
        init = self._inits.get(number)
        return init is not None and init.may_be_first

    def may_be_replaced(self, producer: ProducerIdAndEpoch | None, coordinator: object) -> bool:
        """Return whether another coordinator may have bumped its epoch, with a lost response.

        The record has no previous epoch: this coordinator treats the producer's epoch as old.
        """
        return any(
            init.expected == producer and init.coordinator is not coordinator
            for init in self._inits.values()
        )
