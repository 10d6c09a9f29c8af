"""Checks the log of a transaction coordinator against its live state."""

from dataclasses import replace

from quorumlog.broker.transactions.core.records import TransactionRecord, encode
from tests.support.transactions.coordination import Coordination


def check_log(coordination: Coordination) -> None:
    """b: the live state equals the log; d: epochs never fall, and no id is used again."""
    newest: dict[str, TransactionRecord] = {}
    used: dict[int, str] = {}
    epochs: dict[int, int] = {}
    current: dict[str, int] = {}
    for record in coordination.log:
        name = record.transactional_id
        newest[name] = record
        if record.metadata is not None:
            producer_id, epoch = record.metadata.producer_id, record.metadata.producer_epoch
            owner = used.setdefault(producer_id, name)
            assert owner == name, f"d: producer id {producer_id} of {owner} and {name}"
            assert epoch >= epochs.get(producer_id, 0), f"d: the epoch of {producer_id} falls"
            assert producer_id >= current.get(name, 0), f"d: {producer_id} is used again"
            epochs[producer_id], current[name] = epoch, producer_id
    live = coordination.coordinator.transactions
    known = {name for name, one in live.items() if not one.is_new}
    assert known == {name for name, one in newest.items() if one.metadata is not None}, "b"
    for name in known:
        written = replace(newest[name], metadata=live[name].metadata)
        assert encode(written) == encode(newest[name]), f"b: {name} is not what the log says"
