"""Planted bugs in transactions; they show in whole nodes, under a workload with transactions."""

from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.pending_offsets import PendingOffset
from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.broker.partitions.core.open_transactions import OpenTransactions
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.transactions.core.ending import Ending
from quorumlog.broker.transactions.core.requests import EndTransaction
from quorumlog.broker.transactions.core.rules import SOUND
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.chaos.mutants.consumers import with_changed_fetches
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.messages.fetch import FetchResponse


def _with(broken: type[Any]) -> Substitutes:
    if issubclass(broken, CommittedState):
        return Substitutes(group_rules=replace(GROUP_RULES, committed_state=broken))
    if issubclass(broken, Ending):
        return Substitutes(transaction_rules=replace(SOUND, ending=broken))
    if issubclass(broken, ProducerStates):
        return Substitutes(partition_rules=with_broken(UNCHECKED_RULES, broken))
    return Substitutes(handlers=with_changed_fetches(broken.change))


TRANSACTIONS: Final = Mutants(_with)


@TRANSACTIONS.breaks("a read_committed consumer reads past the last stable offset")
class _ShowsOpenTransactions(ProducerStates):
    def __setattr__(self, name: str, value: object) -> None:  # also after `rebuild`
        super().__setattr__(name, _NothingHoldsBack() if name == "transactions" else value)


class _NothingHoldsBack(OpenTransactions):
    __slots__ = ()

    def last_stable_offset(self, log_start_offset: int, high_watermark: int) -> int:
        del log_start_offset
        return high_watermark


@TRANSACTIONS.breaks("a fetch response omits the aborted transactions")
class _HidesAbortedTransactions:
    @staticmethod
    def change(response: FetchResponse) -> FetchResponse:
        for topic in response.responses:
            for partition in topic.partitions:
                partition.aborted_transactions = None
        return response


@TRANSACTIONS.breaks("a transaction is committed although its producer aborts it")
class _CommitsWhatIsAborted(Ending):
    def _decide(
        self, transaction: Transaction, now_ms: int, request_id: int, request: EndTransaction
    ) -> None:
        super()._decide(transaction, now_ms, request_id, replace(request, commit=True))


@TRANSACTIONS.breaks("a group keeps the offsets of an aborted transaction")
class _KeepsOffsetsOfTheAborted(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        del commits
        return super().end_transaction(producer_id, commits=True)
