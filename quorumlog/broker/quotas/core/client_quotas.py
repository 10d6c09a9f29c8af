"""Chooses the quota that holds for a client, and measures the client by it.

Of all quotas of one kind, the most specific holds, and it alone. A window belongs to the entity
that the quota names: all clients of a user share the user's; a default quota gives each name a
window of its own. Sources: KIP-13, KIP-55, KIP-124, KIP-546, KIP-599; Kafka's `ClientQuotaManager`.
"""

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from quorumlog.broker.quotas.core.windows import QuotaWindow, TokenBucket, WindowLengths
from quorumlog.metadata_quorum.image.quotas import CLIENT_ID, USER
from quorumlog.metadata_quorum.image.records import QuotaEntity

IDLE_MS: Final = 3_600_000  # after so long the window of a silent client is dropped
# Beyond that, the client that was silent for the longest time loses its window, and begins anew.
WINDOWS_MAX: Final = 10_000
NAME_MAX: Final = 300  # characters of a window's client id: a client may send 32,767 bytes


class QuotaKind(Enum):
    """A kind of quota, by its key: bytes a second; % of one CPU; partitions a second."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"


class QuotaClient(NamedTuple):
    """The user of a connection, without its type, and the client id of a request or ""."""

    user: str
    client_id: str


class _Part(Enum):
    """How a quota names the user, or the client id."""

    NAMED = 1
    DEFAULT = 2
    ABSENT = 3


PRECEDENCE: Final = (
    (_Part.NAMED, _Part.NAMED),
    (_Part.NAMED, _Part.DEFAULT),
    (_Part.NAMED, _Part.ABSENT),
    (_Part.DEFAULT, _Part.NAMED),
    (_Part.DEFAULT, _Part.DEFAULT),
    (_Part.DEFAULT, _Part.ABSENT),
    (_Part.ABSENT, _Part.NAMED),
    (_Part.ABSENT, _Part.DEFAULT),
)
"""How the quotas of a kind name (user, client id): the first that exists holds."""

_Bounds = dict[tuple[str | None, str | None], float]
"""By (user, client id); None: the default, "": the quota does not name it."""


class _Holding(NamedTuple):
    """The quota that holds for a client: its bound, and the owner of the window."""

    bound: float
    owner: QuotaClient


class ClientQuotas:
    """All quotas of clients on one broker, and the windows of the clients that they hold for.

    Invariants: without a quota of a kind, nothing is measured, and no window is kept; at most
    WINDOWS_MAX windows are kept, in the order of their last use. A changed bound applies to the
    windows there are.
    """

    def __init__(
        self,
        lengths: WindowLengths = WindowLengths(),  # noqa: B008 - frozen
        mutation_lengths: WindowLengths = WindowLengths(),  # noqa: B008 - frozen
    ) -> None:
        self.is_active = False
        self.exempt_s = 0.0  # CPU time of requests that are never throttled
        self._lengths: Final = lengths
        self._mutation_lengths: Final = mutation_lengths
        self._bounds: dict[QuotaKind, _Bounds] = {kind: {} for kind in QuotaKind}
        self._holding: Final[dict[tuple[QuotaKind, QuotaClient], _Holding | None]] = {}
        self._windows: Final[
            dict[tuple[QuotaKind, QuotaClient], tuple[QuotaWindow | TokenBucket, int]]
        ] = {}  # with the time of their last use, in ms

    def apply(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace all quotas; quotas of other entities than users and client ids are left out."""
        bounds: dict[QuotaKind, _Bounds] = {kind: {} for kind in QuotaKind}
        for entity, values in quotas.items():
            names = dict(entity)
            if not names.keys() <= {USER, CLIENT_ID}:
                continue
            at = names.get(USER, ""), names.get(CLIENT_ID, "")
            for kind in QuotaKind:
                if kind.value in values:
                    bounds[kind][at] = values[kind.value]
        self._bounds = bounds
        self._holding.clear()
        for window in [window for window in self._windows if not bounds[window[0]]]:
            del self._windows[window]
        self.is_active = any(bounds.values())

    def bound(self, kind: QuotaKind, client: QuotaClient) -> float | None:
        """Return the bound that holds for a client, in units a second; None: there is none."""
        holding = self._holding_for(kind, client)
        return None if holding is None else holding.bound

    def window_amount(self, kind: QuotaKind, client: QuotaClient) -> float | None:
        """Return the most that fits into one window of a client; None: any amount."""
        bound = self.bound(kind, client)
        return None if bound is None else bound * self._lengths.full_ms / 1000

    def record(self, kind: QuotaKind, client: QuotaClient, amount: float, now_ms: int) -> int:
        """Count an amount, negative to take it back; return the delay in ms, 0 within the bound.

        `amount`: bytes, CPU seconds times 100, or partitions.
        """
        window = self._window(kind, client, now_ms)
        if window is None:
            return 0
        delay_ms = window.record(amount, now_ms)
        if kind is QuotaKind.REQUEST:  # KIP-124: at most one sample
            return min(delay_ms, self._lengths.sample_ms)
        return delay_ms

    def admit_fetch(self, client: QuotaClient, size: int, now_ms: int) -> int:
        """Count a response; return 0, or the delay in ms: then it is not counted, nor to be sent.

        # DEVIATION: a response that is larger than a window's amount is sent if the window is
        # empty: in Kafka such a consumer never gets a record.
        # docs/decisions/0063-quotas.md
        """
        window = self._window(QuotaKind.FETCH, client, now_ms)
        if not isinstance(window, QuotaWindow):
            return 0
        is_first = window.is_empty(now_ms)
        delay_ms = window.record(size, now_ms)
        if not delay_ms or is_first:
            return 0
        window.record(-size, now_ms)
        return delay_ms

    def owed_ms(self, kind: QuotaKind, client: QuotaClient, now_ms: int) -> int:
        """Return the delay that the amounts so far cause, in ms."""
        window = self._window(kind, client, now_ms)
        return 0 if window is None else window.delay_ms(now_ms)

    def rates(self, now_ms: int) -> list[tuple[QuotaKind, QuotaClient, float, int]]:
        """Return the present rate and delay (ms) of each window of bytes or of request time."""
        return [
            (kind, owner, window.rate(now_ms), window.delay_ms(now_ms))
            for (kind, owner), (window, _) in self._windows.items()
            if isinstance(window, QuotaWindow)
        ]

    def _window(
        self, kind: QuotaKind, client: QuotaClient, now_ms: int
    ) -> QuotaWindow | TokenBucket | None:
        holding = self._holding_for(kind, client)
        if holding is None:
            return None
        at = kind, holding.owner
        found = self._windows.pop(at, None)
        window = self._new_window(kind, holding, now_ms) if found is None else found[0]
        window.bound = holding.bound
        self._windows[at] = window, now_ms  # the last one now
        return window

    def _new_window(
        self, kind: QuotaKind, holding: _Holding, now_ms: int
    ) -> QuotaWindow | TokenBucket:
        windows = self._windows
        while windows:
            oldest = next(iter(windows))
            if len(windows) < WINDOWS_MAX and now_ms - windows[oldest][1] <= IDLE_MS:
                break
            del windows[oldest]
        if kind is QuotaKind.MUTATION:
            return TokenBucket(holding.bound, self._mutation_lengths, now_ms)
        return QuotaWindow(holding.bound, self._lengths)

    def _holding_for(self, kind: QuotaKind, client: QuotaClient) -> _Holding | None:
        if not self._bounds[kind]:
            return None
        at = kind, client
        try:
            return self._holding[at]
        except KeyError:
            if len(self._holding) >= WINDOWS_MAX:
                self._holding.clear()
            found = holding_of(self._bounds[kind], client)
            if len(client.user) + len(client.client_id) <= NAME_MAX:
                self._holding[at] = found
            return found


def holding_of(
    bounds: Mapping[tuple[str | None, str | None], float], client: QuotaClient
) -> _Holding | None:
    """Return the quota that holds: without a client id, only quotas that name none do."""
    for parts in PRECEDENCE:
        user, client_id = (
            {_Part.NAMED: name, _Part.DEFAULT: None, _Part.ABSENT: ""}[part]
            for part, name in zip(parts, client, strict=True)
        )
        if (user == "" or client.user) and (client_id == "" or client.client_id):
            bound = bounds.get((user, client_id))
            if bound is not None:
                owner = QuotaClient(
                    "" if user == "" else _owner_name(client.user),
                    "" if client_id == "" else _owner_name(client.client_id),
                )
                return _Holding(bound, owner)
    return None


def _owner_name(name: str) -> str:
    """Return the name; in place of the end of a long one, a hash of the whole: it stays distinct.

    Windows outlive their connections, and a client may choose a new client id for each request.
    """
    if len(name) <= NAME_MAX:
        return name
    return f"{name[:100]}...{hashlib.sha256(name.encode()).hexdigest()}"
