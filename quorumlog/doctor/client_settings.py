"""The settings of a client that cannot work: with each other, or with this cluster.

The names are those of Apache Kafka's Java clients, and librdkafka's where they differ. Sources:
ProducerConfig, ConsumerConfig and CommonClientConfigs of 4.3; CONFIGURATION.md of librdkafka.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quorumlog.doctor.findings import Finding

CONSUMER_HEARTBEAT: Final = 68  # API key of ConsumerGroupHeartbeat (KIP-848)
INIT_PRODUCER_ID: Final = 22
_ALL: Final = frozenset({"all", "-1"})
_ALIASES: Final[Mapping[str, str]] = {  # librdkafka's name -> Kafka's
    "request.required.acks": "acks",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "metadata.broker.list": "bootstrap.servers",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
}
_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "acks": ("all", "-1", "0", "1"),
    "auto.offset.reset": (
        *("earliest", "latest", "none"),
        *("smallest", "beginning", "largest", "end", "error"),  # of librdkafka
    ),
    "compression.type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "enable.idempotence": ("true", "false"),
    "group.protocol": ("classic", "consumer"),
    "isolation.level": ("read_committed", "read_uncommitted"),
    "security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
}
_NUMBERS: Final = frozenset(
    {
        *("delivery.timeout.ms", "fetch.max.wait.ms", "heartbeat.interval.ms", "linger.ms"),
        *("max.in.flight.requests.per.connection", "max.poll.interval.ms", "max.request.size"),
        *("request.timeout.ms", "retries", "session.timeout.ms", "transaction.timeout.ms"),
        *("config.storage.replication.factor", "offset.storage.replication.factor"),  # Connect
        *("status.storage.replication.factor", "replication.factor"),  # the last: Streams
    }
)
_DEFAULTS: Final[Mapping[str, int]] = {
    "fetch.max.wait.ms": 500,
    "heartbeat.interval.ms": 3_000,
    "linger.ms": 5,
    "request.timeout.ms": 30_000,
    "session.timeout.ms": 45_000,
}
_OF_THE_GROUP: Final = (
    "session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"
)  # fmt: skip


_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED: Final[Mapping[str, str]] = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The facts of a cluster that decide about client settings.

    `configs`: of one of its brokers; empty if they cannot be read. `is_plain`: its addresses speak
    Kafka's protocol without TLS; `is_tls`: they speak TLS.
    """

    brokers: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    api_keys: frozenset[int] = frozenset()
    is_plain: bool = False
    is_tls: bool = False

    def limit(self, name: str) -> int | None:
        """Return a broker's setting that is a number; None: no broker has shown it."""
        text = self.configs.get(name, "")
        return int(text) if text.lstrip("-").isdecimal() else None


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of Java properties: `name=value`, `name: value` or `name value` in each line.

    A backslash continues a line, and escapes a letter, as Java reads them. Raises OSError, and
    ValueError for a file that is not text.
    """
    found: dict[str, str] = {}
    text = path.read_text(encoding="utf-8").replace("\\\n", "")
    for line in map(str.strip, text.splitlines()):
        if not line or line[0] in "#!":
            continue
        end = next((at for at, letter in enumerate(line) if letter in "=: \t"), len(line))
        value = line[end:].lstrip(" \t").removeprefix("=").removeprefix(":").strip()
        found[line[:end]] = _ESCAPE.sub(_unescaped, value)
    return found


def _unescaped(escape: re.Match[str]) -> str:
    code, letter = escape.groups()
    return chr(int(code, 16)) if code else _ESCAPED.get(letter, letter)


def check(given: Mapping[str, str], cluster: ClusterFacts) -> list[Finding]:
    """Return the findings about a client's settings, in the order of the rules."""
    settings = {_ALIASES.get(name, name): value.strip() for name, value in given.items()}
    if "security.protocol" in settings:  # in any case, as in both clients
        settings["security.protocol"] = settings["security.protocol"].upper()
    wrong = [*_wrong_values(settings)]
    refused = {one.subject for one in wrong}
    client = Settings({name: text for name, text in settings.items() if name not in refused})
    return wrong + [finding for rule in _RULES for finding in rule(client, cluster)]


class Settings:
    """The settings that were given, with valid values."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts: Final = texts

    def number(self, name: str) -> int:
        """Return the given number, else Kafka's default."""
        return int(self.texts.get(name, _DEFAULTS[name]))

    def has(self, *names: str) -> bool:
        """Whether one of these settings was given."""
        return any(name in self.texts for name in names)

    def given(self, name: str) -> int | None:
        """Return the given number; None: the setting was left out."""
        return int(self.texts[name]) if name in self.texts else None

    @property
    def is_idempotent(self) -> bool:
        """Whether the producer has to be idempotent: a default is not a requirement."""
        texts = self.texts
        return texts.get("enable.idempotence") == "true" or "transactional.id" in texts


def _wrong_values(settings: Mapping[str, str]) -> Iterator[Finding]:
    for name, text in settings.items():
        choices = _CHOICES.get(name, ())
        if choices and text not in choices:
            near = difflib.get_close_matches(text, choices, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield _finding(name, text, "no client accepts this value", f"use {_or(choices)}{hint}")
        elif name in _NUMBERS and not text.lstrip("-").isdecimal():
            yield _finding(name, text, "it is not a whole number", "write a number without a unit")


def _idempotence(client: Settings, cluster: ClusterFacts) -> Iterator[Finding]:
    texts = client.texts
    if not client.is_idempotent:
        return
    cause = "transactional.id" if "transactional.id" in texts else "enable.idempotence=true"
    if texts.get("acks", "all") not in _ALL:
        yield _finding("acks", texts["acks"], f"{cause} requires acks=all", "set acks=all")
    if texts.get("enable.idempotence") == "false":
        why = "a transactional producer is idempotent"
        yield _finding("enable.idempotence", "false", why, "leave it out")
    if client.given("retries") == 0:
        yield _finding("retries", "0", f"{cause} requires retries", "leave it out")
    in_flight = client.given("max.in.flight.requests.per.connection")
    if in_flight is not None and in_flight > 5:
        name = "max.in.flight.requests.per.connection"
        yield _finding(name, str(in_flight), f"{cause} allows at most 5", f"set {name}=5")
    if cluster.api_keys and INIT_PRODUCER_ID not in cluster.api_keys:
        why = "the brokers give out no producer ids (no InitProducerId)"
        yield _finding("enable.idempotence", "true", why, "set enable.idempotence=false")


def _producer_limits(client: Settings, cluster: ClusterFacts) -> Iterator[Finding]:
    size, largest = client.given("max.request.size"), cluster.limit("message.max.bytes")
    if size is not None and largest is not None and size > largest:
        yield _finding(
            "max.request.size",
            str(size),
            f"brokers refuse a batch above message.max.bytes={largest}: MESSAGE_TOO_LARGE",
            f"set it to {largest} at most, or raise max.message.bytes of the topic",
        )
    timeout, longest = (
        client.given("transaction.timeout.ms"),
        cluster.limit("transaction.max.timeout.ms"),
    )
    if timeout is not None and longest is not None and timeout > longest:
        yield _finding(
            "transaction.timeout.ms",
            str(timeout),
            f"the brokers' transaction.max.timeout.ms is {longest}: INVALID_TRANSACTION_TIMEOUT",
            f"set it to {longest} at most",
        )
    linger, request = client.number("linger.ms"), client.number("request.timeout.ms")
    delivery = client.given("delivery.timeout.ms")  # its default grows with the other two
    if delivery is not None and delivery < linger + request:
        yield _finding(
            "delivery.timeout.ms",
            str(delivery),
            f"it must be linger.ms={linger} + request.timeout.ms={request} at least",
            f"set it to {linger + request}",
        )


def _group(client: Settings, cluster: ClusterFacts) -> Iterator[Finding]:
    texts = client.texts
    if texts.get("group.protocol") == "consumer":
        for name in _OF_THE_GROUP:
            if name in texts:
                why = "group.protocol=consumer leaves it to the brokers"
                yield _finding(
                    name, texts[name], why, "leave it out, or set group.protocol=classic"
                )
        if cluster.api_keys and CONSUMER_HEARTBEAT not in cluster.api_keys:
            why = "the brokers do not serve the protocol of KIP-848"
            yield _finding("group.protocol", "consumer", why, "set group.protocol=classic")
        return
    session = client.given("session.timeout.ms")
    least = cluster.limit("group.min.session.timeout.ms")
    most = cluster.limit("group.max.session.timeout.ms")
    if (
        session is not None
        and least is not None
        and most is not None
        and not (least <= session <= most)
    ):
        yield _finding(
            "session.timeout.ms",
            str(session),
            f"the brokers accept {least} to {most} "
            "(group.min.session.timeout.ms, group.max.session.timeout.ms): INVALID_SESSION_TIMEOUT",
            f"choose a value from {least} to {most}",
        )
    heartbeat, session = client.number("heartbeat.interval.ms"), client.number("session.timeout.ms")
    if client.has("heartbeat.interval.ms", "session.timeout.ms") and heartbeat >= session:
        why = f"it must be less than session.timeout.ms={session}"
        yield _finding("heartbeat.interval.ms", str(heartbeat), why, f"set it to {session // 3}")
    poll = client.given("max.poll.interval.ms")
    if poll is not None and poll < session:
        why = f"librdkafka requires session.timeout.ms={session} at least"
        yield _finding("max.poll.interval.ms", str(poll), why, f"set it to {session} or more")


def _fetches(client: Settings, _cluster: ClusterFacts) -> Iterator[Finding]:
    wait, request = client.number("fetch.max.wait.ms"), client.number("request.timeout.ms")
    if client.has("fetch.max.wait.ms", "request.timeout.ms") and wait >= request:
        why = f"an idle fetch lasts longer than request.timeout.ms={request}"
        yield _finding("fetch.max.wait.ms", str(wait), why, f"set it to {request // 2} at most")


def _replication(client: Settings, cluster: ClusterFacts) -> Iterator[Finding]:
    for name in sorted(name for name in client.texts if name.endswith("replication.factor")):
        factor = client.given(name) if name in _NUMBERS else None
        if factor is not None and 0 < cluster.brokers < factor:
            why = f"the cluster has {cluster.brokers} brokers: INVALID_REPLICATION_FACTOR"
            yield _finding(name, str(factor), why, f"set it to {cluster.brokers}, or to -1")


def _security(client: Settings, cluster: ClusterFacts) -> Iterator[Finding]:
    protocol = client.texts.get("security.protocol", "PLAINTEXT")
    is_encrypted = protocol.endswith("SSL")
    if is_encrypted and cluster.is_plain and not cluster.is_tls:
        why = "the port speaks plain Kafka: the handshake of TLS is closed without an answer"
        remedy = "set security.protocol=PLAINTEXT, or connect to the TLS listener"
        yield _finding("security.protocol", protocol, why, remedy)
    if protocol.startswith("SASL") and "sasl.mechanism" not in client.texts:
        why = "the default mechanism is GSSAPI, which needs Kerberos"
        yield _finding("sasl.mechanism", "", why, "set sasl.mechanism, for example SCRAM-SHA-256")


_RULES: Final[Sequence[Callable[[Settings, ClusterFacts], Iterator[Finding]]]] = (
    _idempotence,
    _producer_limits,
    _group,
    _fetches,
    _replication,
    _security,
)


def _finding(setting: str, value: str, why: str, remedy: str) -> Finding:
    text = f"{setting}={value}" if value else setting
    return Finding(name="client-setting", subject=setting, why=f"{text}: {why}", remedy=remedy)


def _or(choices: Sequence[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
