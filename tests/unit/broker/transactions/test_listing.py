"""DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from quorumlog.broker.transactions.core.requests import TransactionFilter
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.transactions.coordination import T0, T1, Coordination, add, commit, init


def several() -> Coordination:
    """`done` is complete, `open` has lasted 500 ms, `x` is empty, `new` is not committed."""
    driven = Coordination()
    for name in ("done", "open"):
        driven.answer(add(driven.begun(name=name), T0, name=name, api_version=5))
    driven.ended(commit(driven.coordinator.transactions["done"].producer, name="done"))
    driven.begun()
    driven.ask(init(name="new"))
    driven.tick(500)
    return driven


def listed(driven: Coordination, **wanted: object) -> list[str]:
    wanted_of = TransactionFilter(**wanted)  # type: ignore[arg-type]
    found = driven.coordinator.list_transactions(driven.now_ms, wanted_of)
    return [one.transactional_id for one in found]


def test_all_that_is_committed_is_listed() -> None:
    driven = several()
    found = driven.coordinator.list_transactions(driven.now_ms, TransactionFilter())
    assert [(one.transactional_id, one.producer_id, one.state.value) for one in found] == [
        ("done", 1002, "CompleteCommit"),
        ("open", 1003, "Ongoing"),
        ("x", 1004, "Empty"),
    ]


def test_a_filter_lets_pass_what_it_names() -> None:
    driven = several()
    assert listed(driven, states=frozenset({"Ongoing", "Empty"})) == ["open", "x"]
    assert listed(driven, producer_ids=frozenset({1002, 77})) == ["done"]
    ongoing = frozenset({"Ongoing"})
    assert listed(driven, states=ongoing, duration_ms=499) == ["open"]
    assert listed(driven, states=ongoing, duration_ms=500) == []
    assert listed(driven, states=ongoing, producer_ids=frozenset({1002})) == []
    assert listed(driven, matches_id=lambda name: "n" in name) == ["done", "open"]
    assert listed(driven, states=ongoing, matches_id=lambda name: name == "x") == []


def test_a_state_that_does_not_exist_is_named_and_lets_nothing_pass() -> None:
    driven = several()
    states = frozenset({"Ongoing", "Lost", "empty"})
    assert TransactionFilter(states=states).unknown_states == ["Lost", "empty"]
    assert listed(driven, states=states) == ["open"]
    assert listed(driven, states=frozenset({"Lost"})) == []


def test_a_description_says_what_is_committed() -> None:
    driven = Coordination()
    producer = driven.opened(T1, T0)
    driven.ask(commit(producer))
    found = driven.coordinator.describe("x")
    assert found.error_code is ErrorCode.NONE
    assert (found.state, found.producer) == (TransactionState.ONGOING, producer)
    assert (found.partitions, found.transaction_timeout_ms) == ((T0, T1), 10_000)
    assert found.start_ms == driven.now_ms


def test_what_is_not_committed_is_not_found() -> None:
    driven = Coordination()
    driven.ask(init())
    for name in ("x", "y"):
        found = driven.coordinator.describe(name)
        assert found.error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert found.transactional_id == name
    assert driven.coordinator.describe("").error_code is ErrorCode.INVALID_REQUEST
