"""The rules of a transaction coordinator."""

from dataclasses import dataclass
from typing import Final

from quorumlog.broker.transactions.core.adding import Adding
from quorumlog.broker.transactions.core.deadlines import Expiry
from quorumlog.broker.transactions.core.ending import Ending
from quorumlog.broker.transactions.core.initialization import Initialization
from quorumlog.broker.transactions.core.markers import Markers


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRules:
    """The class of each rule. A mutant is a `TransactionRules` with one class replaced."""

    initialization: type[Initialization] = Initialization
    adding: type[Adding] = Adding
    ending: type[Ending] = Ending
    markers: type[Markers] = Markers
    expiry: type[Expiry] = Expiry


SOUND: Final = TransactionRules()
