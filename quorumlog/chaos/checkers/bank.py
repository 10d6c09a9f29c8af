"""Banks: transfers move money between accounts; the total is constant, no balance is negative.

A `read` returns a map from account to balance; a `transfer` names the accounts and the amount. The
expected total is that of the first read, because a history does not contain the initial balances.
Source: jepsen.tests.bank.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from quorumlog.chaos.checkers.calls import (
    by_key,
    calls_checker,
    count_calls,
    found,
    gap,
    value_of,
    witness,
)
from quorumlog.chaos.checkers.entries import OK
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.checkers.verdict import Anomaly, Partial
from quorumlog.chaos.history.model import HistoryError

_ANOMALIES: Final = (
    Anomaly("no-balance", "A read found an account without a balance."),
    Anomaly("wrong-total", "A read's balances do not add up to the first read's."),
    Anomaly("negative-balance", "A read found an account below 0."),
)


def _check(calls: pa.Table) -> Partial:
    partial = Partial(counts=count_calls(calls))
    told: dict[str, list[dict[str, Any]]] = {}
    plain, unread = calls.to_pylist(), []
    for key, rows in by_key(calls):
        chosen = [
            row
            for row in rows.tolist()
            if plain[row]["f"] == "read" and plain[row]["outcome"] == OK
        ]
        reads = [(row, _balances(plain[row])) for row in chosen]
        if not reads:
            unread.append(key or "the only one")
        total = None
        for row, balances in reads:
            wrong, amount = _wrong(balances, total)
            total = amount if total is None else total
            for name, note in wrong.items():
                told.setdefault(name, []).append(witness(calls, key, note, [("read", row)]))
    if unread:
        partial.gaps["a bank was never read"] = gap(unread)
    partial.results = [found(name, one, len(one)) for name, one in told.items()]
    return partial


def _balances(call: Mapping[str, Any]) -> dict[str, Any]:
    value = value_of(call["value"], call["text"])
    try:
        balances = dict(value)
    except (TypeError, ValueError):
        balances = {}
    if not balances or any(type(amount) not in (int, type(None)) for amount in balances.values()):
        raise HistoryError(
            f"event {call['invoked']}: a read of the model bank returns balances by account, "
            f"not {call['text'] or call['value']}"
        )
    return balances


def _wrong(
    balances: Mapping[str, int | None], total: int | None
) -> tuple[dict[str, str], int | None]:
    """Return the anomalies of one read with notes, and the sum of its balances."""
    empty = [account for account, amount in balances.items() if amount is None]
    if empty:
        return {"no-balance": f"account {', '.join(empty)}"}, None
    amounts = {account: amount for account, amount in balances.items() if amount is not None}
    found_here, added = {}, sum(amounts.values())
    if total is not None and added != total:
        found_here["wrong-total"] = f"{added} in all, not {total}"
    below = {account: amount for account, amount in amounts.items() if amount < 0}
    if below:
        text = ", ".join(f"account {account}: {amount}" for account, amount in below.items())
        found_here["negative-balance"] = text
    return found_here, added


CHECKER: Final = calls_checker(
    "bank", TEXTS["bank"], _ANOMALIES, frozenset({"read", "transfer"}), _check
)
