"""The InitProducerIds that coordinators got. A producer may not have heard what one has changed."""

from typing import Final, NamedTuple

from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch


class _Init(NamedTuple):
    """What it names, the coordinator that got it, and whether the id may have expired by then."""

    expected: ProducerIdAndEpoch
    coordinator: object
    may_be_first: bool


class Initializations:
    """Those that were not refused, by their place among the requests."""

    def __init__(self) -> None:
        self._inits: Final[dict[int, _Init]] = {}

    def came_in(
        self, number: int, expected: ProducerIdAndEpoch, coordinator: object, *, may_be_first: bool
    ) -> None:
        """Note that a coordinator has got one. `may_be_first`: its id may have expired."""
        self._inits[number] = _Init(expected, coordinator, may_be_first)

    def refused(self, number: int) -> None:
        """Note that it has changed nothing."""
        self._inits.pop(number, None)

    def may_be_first(self, number: int) -> bool:
        """Whether this request is one that gets a producer id, whatever it names (KIP-360).

        It is the first of an id that has expired: the coordinator knows nothing of earlier ones.
        """
        init = self._inits.get(number)
        return init is not None and init.may_be_first

    def may_be_replaced(self, producer: ProducerIdAndEpoch | None, coordinator: object) -> bool:
        """Whether another coordinator may have given the producer its next epoch: it was not told.

        No record says which epoch it had before that one: this coordinator takes it for an old one.
        """
        return any(
            init.expected == producer and init.coordinator is not coordinator
            for init in self._inits.values()
        )
