"""The rules of a transaction coordinator."""

from dataclasses import dataclass
from typing import Final

from quorumlog.broker.transactions.core.expiry import Expiry
from quorumlog.broker.transactions.core.markers import Markers
from quorumlog.broker.transactions.core.partition_additions import PartitionAdditions
from quorumlog.broker.transactions.core.producer_initialization import ProducerInitialization
from quorumlog.broker.transactions.core.transaction_end import TransactionEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRules:
    """The class of each rule. A mutant is a `TransactionRules` with one class replaced."""

    initialization: type[ProducerInitialization] = ProducerInitialization
    adding: type[PartitionAdditions] = PartitionAdditions
    ending: type[TransactionEnd] = TransactionEnd
    markers: type[Markers] = Markers
    expiry: type[Expiry] = Expiry


SOUND: Final = TransactionRules()
