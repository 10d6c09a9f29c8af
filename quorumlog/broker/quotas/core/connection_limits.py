"""Decides whether a new connection is served at once, later, or not at all.

Sources: KIP-402, KIP-612; Kafka's `ConnectionQuotas`. Connections of the inter-broker listener
never wait for the rate of the broker, if there is another listener.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from quorumlog.broker.quotas.core.windows import QuotaWindow, WindowLengths
from quorumlog.metadata_quorum.image.quotas import IP
from quorumlog.metadata_quorum.image.records import QuotaEntity
from quorumlog.settings.kinds import INT_MAX

CREATION_RATE: Final = "connection_creation_rate"
ADDRESSES_MAX: Final = 10_000  # windows of addresses; beyond that, the oldest begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """The settings: counts by address, and rates of new connections, in connections a second."""

    per_ip: int = INT_MAX
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    rate: int = INT_MAX
    listener_rate: int = INT_MAX

    def count_of(self, host: str) -> int:
        """Return the maximum number of connections of an address."""
        return self.per_ip_overrides.get(host, self.per_ip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The outcome: `delay_ms` until the connection is read, or closed if `refusal` is set."""

    delay_ms: int = 0
    refusal: str = ""


ADMITTED: Final = Admission()


class ConnectionLimits:
    """The counts and rates of one broker's connections.

    Invariants: an address never has more connections than its maximum; a delay is at most one
    sample; without a rate, no window is kept.
    """

    def __init__(self, lengths: WindowLengths = WindowLengths()) -> None:  # noqa: B008 - frozen
        self._lengths: Final = lengths
        self._counts: Final[Counter[str]] = Counter()  # of open connections, by address
        self._windows: Final[dict[tuple[str, str], QuotaWindow]] = {}  # ("ip", host), ...
        self._rates: Mapping[str | None, float] = {}  # by address; None: the default

    def apply(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace the rates of addresses."""
        self._rates = {
            name and str(ip_address(name)): values[CREATION_RATE]
            for ((kind, name), *_), values in quotas.items()
            if kind == IP and CREATION_RATE in values
        }

    def admit(
        self, host: str, listener: str, bounds: ConnectionBounds, now_ms: int, *, is_protected: bool
    ) -> Admission:
        """Judge a new connection. Unless it is refused, the caller must call `closed` later.

        `host`: the address of the peer, as the system writes it.
        """
        if self._counts[host] >= bounds.count_of(host):
            return Admission(refusal=f"{self._counts[host]} of {host} are open")
        rates = [("listener", listener, bounds.listener_rate), ("broker", "", bounds.rate)]
        delays = [self._record(kind, name, rate, 1, now_ms) for kind, name, rate in rates]
        delay_ms = delays[0] if is_protected else max(delays)
        ip_rate = self._rates.get(host, self._rates.get(None))
        if ip_rate is not None:
            ip_delay_ms = self._record(IP, host, ip_rate, 1, now_ms)
            if ip_delay_ms:
                for kind, name, rate in (*rates, (IP, host, ip_rate)):
                    self._record(kind, name, rate, -1, now_ms)
                refusal = f"{host} has opened more than {ip_rate:g} a second"
                return Admission(delay_ms=ip_delay_ms, refusal=refusal)
        self._counts[host] += 1
        return ADMITTED if delay_ms == 0 else Admission(delay_ms=delay_ms)

    def closed(self, host: str) -> None:
        """Stop counting an admitted connection."""
        self._counts[host] -= 1
        if self._counts[host] <= 0:
            del self._counts[host]

    def _record(self, kind: str, name: str, rate: float, amount: int, now_ms: int) -> int:
        at = kind, name
        if rate >= INT_MAX:
            self._windows.pop(at, None)
            return 0
        window = self._windows.get(at)
        if window is None:
            if len(self._windows) >= ADDRESSES_MAX:
                self._windows.pop(next(iter(self._windows)))
            window = self._windows[at] = QuotaWindow(rate, self._lengths)
        window.bound = max(rate, 1e-3)  # nothing is divided by 0
        return min(window.record(amount, now_ms), self._lengths.sample_ms)
