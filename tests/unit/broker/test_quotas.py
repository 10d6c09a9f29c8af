"""Quotas as pure decisions: windows, tokens, precedence, limits of connections."""

from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.quotas.core import client_quotas
from quorumlog.broker.quotas.core.client_quotas import ClientQuotas, QuotaClient, QuotaKind
from quorumlog.broker.quotas.core.connection_limits import ConnectionBounds, ConnectionLimits
from quorumlog.broker.quotas.core.windows import QuotaWindow, TokenBucket, WindowLengths
from quorumlog.metadata_quorum.image.records import QuotaEntity

LENGTHS = WindowLengths()
ANN = QuotaClient("ann", "app")
PRODUCE, FETCH, REQUEST, MUTATION = QuotaKind


# --- Windows ---


@given(
    st.integers(2, 12),
    st.sampled_from([100, 1000]),
    st.floats(1.0, 1e6),
    st.lists(st.tuples(st.integers(1, 250), st.integers(0, 300)), min_size=1, max_size=20),
)
def test_a_client_that_waits_for_each_delay_stays_within_the_bound(
    num: int, sample_ms: int, bound: float, uses: list[tuple[int, int]]
) -> None:
    """`uses`: amounts, in thousandths of a full window, and pauses in ms."""
    lengths = WindowLengths(samples=num, sample_ms=sample_ms)
    window = QuotaWindow(bound, lengths)
    whole, now_ms, total = bound * lengths.whole_ms / 1000, 0, 0.0
    for thousandths, pause_ms in uses * 20:
        amount = bound * lengths.full_ms / 1000 * thousandths / 1000
        total += amount
        assert total <= 1.25 * whole + bound * now_ms / 1000 * (1 + 1 / (num - 1))
        now_ms += window.record(amount, now_ms) + pause_ms
        assert len(window._samples) <= num + 1


def test_an_idle_client_may_use_one_window_at_once() -> None:
    window = QuotaWindow(100, LENGTHS)
    assert window.record(1000, 0) == 0
    assert window.record(1, 0) == 10  # 1001 / 100 - 10 s
    assert window.record(0, 5_000_000) == 0
    assert window.record(1000, 5_000_000) == 0


def test_a_sample_expires_once_it_is_older_than_the_window() -> None:
    window = QuotaWindow(100, LENGTHS)
    window.record(5000, 0)
    assert window.rate(10_999) == pytest.approx(5000 / 10.999)
    assert window.rate(11_000) == 0
    assert window.delay_ms(11_000) == 0


@pytest.mark.parametrize(
    ("now_ms", "elapsed_ms"), [(0, 10_000), (500, 10_500), (1000, 10_000), (9999, 10_999)]
)
def test_the_window_is_never_shorter_than_its_full_samples(now_ms: int, elapsed_ms: int) -> None:
    """Kafka's Rate.windowSize: missing full samples count as elapsed."""
    window = QuotaWindow(1, LENGTHS)
    window.record(100, 0)
    assert window.rate(now_ms) == pytest.approx(100 / elapsed_ms * 1000)


def test_an_amount_can_be_taken_back() -> None:
    window = QuotaWindow(100, LENGTHS)
    assert window.record(3000, 0) == 20_000
    assert window.record(-3000, 0) == 0
    assert window.is_empty(0)


def test_tokens_flow_in_and_may_be_overdrawn_once() -> None:
    bucket = TokenBucket(2, LENGTHS, 0)  # 22 at most
    assert bucket.record(22, 0) == 0
    assert bucket.record(10, 0) == 5000
    assert bucket.delay_ms(4000) == 1000
    assert bucket.delay_ms(5000) == 0
    bucket.record(-100, 5000)
    assert bucket.record(22, 5000) == 0  # given back: no more than the bucket holds
    assert bucket.record(1, 5000) == 500


# --- Precedence ---

LEVELS: list[Mapping[str, str | None]] = [
    {"user": "ann", "client-id": "app"},
    {"user": "ann", "client-id": None},
    {"user": "ann"},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "app"},
    {"client-id": None},
]
OTHERS: list[Mapping[str, str | None]] = [
    {"user": "bob", "client-id": "app"},
    {"user": "bob"},
    {"client-id": "other"},
    {"ip": "1.2.3.4"},
]


def entity(names: Mapping[str, str | None]) -> QuotaEntity:
    return tuple(sorted(names.items()))


def quotas_of(
    bounds: Mapping[int, float], kind: QuotaKind = PRODUCE
) -> dict[QuotaEntity, dict[str, float]]:
    """Return quotas by their place in LEVELS."""
    return {entity(LEVELS[level]): {kind.value: bound} for level, bound in bounds.items()}


@given(st.dictionaries(st.sampled_from(range(len(LEVELS))), st.floats(1, 9)))
def test_the_most_specific_quota_holds_alone(bounds: dict[int, float]) -> None:
    quotas = ClientQuotas()
    others = {entity(names): {PRODUCE.value: 77.0} for names in OTHERS}
    quotas.apply(quotas_of(bounds) | others)
    assert quotas.bound(PRODUCE, ANN) == (bounds[min(bounds)] if bounds else None)
    assert quotas.bound(FETCH, ANN) is None


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_without_a_client_id_only_quotas_of_users_hold(level: int) -> None:
    quotas = ClientQuotas()
    quotas.apply(quotas_of({level: 5.0}))
    expected = None if "client-id" in LEVELS[level] else 5.0
    assert quotas.bound(PRODUCE, QuotaClient("ann", "")) == expected


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        ({"user": "ann"}, {("ann", "app"), ("ann", "b")}),
        ({"user": None}, {("ann", "app"), ("ann", "b")}),
        ({"client-id": "app"}, {("ann", "app"), ("bob", "app")}),
        ({"client-id": None}, {("ann", "app"), ("bob", "app")}),
        ({"user": "ann", "client-id": "app"}, {("ann", "app")}),
        ({"user": None, "client-id": None}, {("ann", "app")}),
    ],
)
def test_a_window_belongs_to_the_entity_that_the_quota_names(
    names: Mapping[str, str | None], shared: set[tuple[str, str]]
) -> None:
    """All clients of a user share its window; a default gives each name one of its own."""
    quotas = ClientQuotas()
    quotas.apply({entity(names): {PRODUCE.value: 1.0}})
    quotas.record(PRODUCE, ANN, 20, 0)
    slowed = {
        client
        for client in product(("ann", "bob"), ("app", "b"))
        if quotas.owed_ms(PRODUCE, QuotaClient(*client), 0)
    }
    assert slowed == shared


def test_a_changed_bound_applies_to_the_window_there_is() -> None:
    quotas = ClientQuotas()
    quotas.apply(quotas_of({6: 100.0}))
    assert quotas.record(PRODUCE, ANN, 1000, 0) == 0
    quotas.apply(quotas_of({6: 50.0}))
    assert quotas.owed_ms(PRODUCE, ANN, 0) == 10_000
    quotas.apply(quotas_of({6: 1000.0}))
    assert quotas.owed_ms(PRODUCE, ANN, 0) == 0
    quotas.apply({})
    assert not quotas.is_active
    assert quotas.record(PRODUCE, ANN, 10**9, 0) == 0
    assert not quotas._windows


def test_request_time_delays_a_client_by_one_sample_at_most() -> None:
    quotas = ClientQuotas()
    quotas.apply(quotas_of({6: 1.0}, REQUEST))
    assert quotas.record(REQUEST, ANN, 1000, 0) == 1000


def test_windows_are_bounded_and_idle_ones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "WINDOWS_MAX", 3)
    quotas = ClientQuotas()
    quotas.apply(quotas_of({7: 1.0}))
    for number in range(5):
        quotas.record(PRODUCE, QuotaClient("", f"c{number}"), 99, number)
    assert len(quotas._windows) == 3
    assert quotas.owed_ms(PRODUCE, QuotaClient("", "c4"), 4) > 0  # the last ones are kept
    quotas.record(PRODUCE, QuotaClient("", "late"), 1, client_quotas.IDLE_MS + 100)
    assert [owner.client_id for _, owner in quotas._windows] == ["late"]


def test_a_fetch_over_the_limit_is_not_counted() -> None:
    quotas = ClientQuotas()
    quotas.apply(quotas_of({6: 100.0}, FETCH))
    assert quotas.window_amount(FETCH, ANN) == 1000
    assert quotas.admit_fetch(ANN, 900, 0) == 0
    assert quotas.admit_fetch(ANN, 900, 0) == 8000
    assert quotas.admit_fetch(ANN, 100, 0) == 0


def test_a_response_larger_than_a_window_is_sent_to_a_client_with_an_empty_one() -> None:
    quotas = ClientQuotas()
    quotas.apply(quotas_of({6: 100.0}, FETCH))
    assert quotas.admit_fetch(ANN, 5000, 0) == 0
    assert quotas.admit_fetch(ANN, 5000, 1000) > 0
    assert quotas.admit_fetch(ANN, 5000, 11_000) == 0


# --- Connections ---


def admitted(
    limits: ConnectionLimits, bounds: ConnectionBounds, now_ms: int = 0, **more: bool
) -> tuple[int, bool]:
    protected = more.get("protected", False)
    found = limits.admit("10.0.0.1", "L", bounds, now_ms, is_protected=protected)
    return found.delay_ms, bool(found.refusal)


def test_an_address_has_no_more_connections_than_its_maximum() -> None:
    limits = ConnectionLimits()
    bounds = ConnectionBounds(per_ip=1, per_ip_overrides={"10.0.0.2": 2})
    assert admitted(limits, bounds) == (0, False)
    assert admitted(limits, bounds) == (0, True)
    for refused in (False, False, True):
        found = limits.admit("10.0.0.2", "L", bounds, 0, is_protected=False)
        assert bool(found.refusal) is refused
    limits.closed("10.0.0.1")
    assert admitted(limits, bounds) == (0, False)
    limits.closed("10.0.0.1")
    assert limits._counts["10.0.0.1"] == 0


def test_a_broker_rate_delays_all_but_connections_of_brokers() -> None:
    limits, bounds = ConnectionLimits(), ConnectionBounds(rate=1)
    assert [admitted(limits, bounds)[0] for _ in range(11)][9:] == [0, 1000]
    assert admitted(limits, bounds, protected=True) == (0, False)
    own = ConnectionBounds(listener_rate=1)
    assert [admitted(limits, own, protected=True)[0] for _ in range(12)][-1] == 1000
    assert admitted(limits, ConnectionBounds()) == (0, False)  # without a rate


def test_an_address_over_its_rate_is_refused_after_a_delay_and_not_counted() -> None:
    limits, bounds = ConnectionLimits(), ConnectionBounds(rate=100)
    limits.apply({(("ip", None),): {"connection_creation_rate": 1.0}})
    assert [admitted(limits, bounds) for _ in range(10)] == [(0, False)] * 10
    assert [admitted(limits, bounds) for _ in range(3)] == [(1000, True)] * 3
    assert limits._counts["10.0.0.1"] == 10
    assert limits._windows["broker", ""].rate(0) == 1.0  # 10 in 10 s: refused ones do not count
    limits.apply({(("ip", "10.0.0.1"),): {"connection_creation_rate": 100.0}})
    assert admitted(limits, bounds) == (0, False)


def test_a_rate_of_zero_delays_each_connection_by_one_sample() -> None:
    limits = ConnectionLimits()
    assert [admitted(limits, ConnectionBounds(rate=0))[0] for _ in range(2)] == [1000, 1000]


def test_long_client_ids_hold_little_memory_and_have_windows_of_their_own() -> None:
    quotas = ClientQuotas()
    quotas.apply(quotas_of({7: 1.0}))
    names = [f"{'c' * 32_000}{number}" for number in range(100)]
    for name in names:
        quotas.record(PRODUCE, QuotaClient("ann", name), 99, 0)
    assert all(quotas.owed_ms(PRODUCE, QuotaClient("ann", name), 0) > 0 for name in names)
    assert len(quotas._windows) == len(names)
    assert quotas.owed_ms(PRODUCE, QuotaClient("ann", "c" * 32_000), 0) == 0
    kept = [*quotas._windows, *quotas._holding]
    assert sum(len(client.client_id) for _, client in kept) < 100 * client_quotas.NAME_MAX
