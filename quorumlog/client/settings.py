"""Settings of the clients: Kafka's names in snake_case, Kafka's units and defaults (4.3).

`*Settings` hold and check the values; `*Options` repeat names and types, so that a type checker and
an editor have the keyword arguments (PEP 692). A test keeps the two equal.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from inspect import iscoroutinefunction
from typing import (
    Any,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from quorumlog.client.assignor import Assignor, named_assignor
from quorumlog.client.interceptors import ConsumerInterceptor, ProducerInterceptor
from quorumlog.client.offset_resets import parse_offset_reset
from quorumlog.client.security import SECRET, SecurityOptions, SecuritySettings

# Kafka's settings for features that these clients do not have are refused, not ignored: an ignored
# setting would promise a missing feature, such as an encrypted connection.
_PEM: Final = "certificates are PEM: set ssl_ca, ssl_certificate and ssl_key"
_METRICS: Final = "the clients report no metrics"

_REASONS: Final[Mapping[str, str]] = {
    "config_providers": "values are taken as they are",
    "enable_metrics_push": _METRICS,
    "metric_reporters": _METRICS,
    "metrics_recording_level": _METRICS,
    "sasl": "of SASL there are sasl_mechanism, sasl_username, sasl_password and sasl_token",
    "ssl": "versions and ciphers of TLS are the defaults of this Python's OpenSSL",
    "transaction_two_phase_commit_enable": "there is no two-phase commit (KIP-939)",
}
_OF_OTHERS: Final[Mapping[str, str]] = {
    "api_version": "versions are agreed upon with each broker",
    "consumer_timeout_ms": "poll(timeout_ms) returns after that time",
    "interceptor_classes": "set interceptors: a list of objects",
    "partitioner_class": "set partitioner: a function",
    "sasl_jaas_config": "set sasl_username and sasl_password",
    "sasl_oauth_token_provider": "set sasl_token: a function that returns a token",
    "sasl_plain_password": "set sasl_password",
    "sasl_plain_username": "set sasl_username",
    "ssl_cafile": "set ssl_ca",
    "ssl_ca_location": "set ssl_ca",
    "ssl_ca_pem": "set ssl_ca",
    "ssl_certfile": "set ssl_certificate",
    "ssl_certificate_location": "set ssl_certificate",
    "ssl_certificate_pem": "set ssl_certificate",
    "ssl_context": _PEM,
    "ssl_endpoint_identification_algorithm": "ssl_check_hostname=False checks no host name",
    "ssl_key_location": "set ssl_key",
    "ssl_key_pem": "set ssl_key",
    "ssl_keyfile": "set ssl_key",
    "ssl_keystore_location": _PEM,
    "ssl_keystore_type": _PEM,
    "ssl_password": "set ssl_key_password",
    "ssl_truststore_location": _PEM,
    "ssl_truststore_type": _PEM,
    "loop": "a client belongs to the event loop that it is started in",
    "topic": "subscribe([...]) takes the topics",
    "topics": "subscribe([...]) takes the topics",
}


Acks = Literal["all", 0, 1, -1]
CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
OffsetReset = str
"""`parse_offset_reset` checks it."""
GroupProtocol = Literal["classic", "consumer"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
AssignorName = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]
AnyAssignor = AssignorName | Assignor | Callable[..., Any]
"""A built-in assignor, or one of the user's own: `named_assignor` checks it."""
DEFAULT_ASSIGNORS: Final[Sequence[AnyAssignor]] = ("range", "cooperative-sticky")
Deserializer = Callable[[bytes], Any]
Partitioner = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
Serializer = Callable[[Any], bytes | None]
BootstrapServers = str | Sequence[str]
Address = tuple[str, int]

P = ParamSpec("P")

INT32_MAX = 2**31 - 1
PORT_MAX = 65_535
_MAY_BE_NEGATIVE = frozenset({"acks"})
_ABOVE_0 = frozenset(
    {
        "heartbeat_interval_ms", "max_poll_interval_ms", "max_poll_records", "metadata_max_age_ms",
        "metadata_retry_backoff_ms", "reconnect_backoff_ms", "request_timeout_ms",
        "retry_backoff_ms", "socket_connection_setup_timeout_ms", "transaction_timeout_ms",
    }
)  # fmt: skip
IN_FLIGHT_MAX = 5  # a broker keeps the last five batches of a producer (KIP-98)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSettings(SecuritySettings):
    """The settings of every client, to find brokers and to survive their loss.

    The `metadata_retry_backoff*` settings are not in Kafka: they make failover fast. While the
    leader of a needed partition is unknown or unreachable, metadata is requested after
    `metadata_retry_backoff_ms`, growing to `metadata_retry_backoff_max_ms`.
    """

    bootstrap_servers: BootstrapServers
    client_id: str = "quorumlog"
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 20
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    metadata_retry_backoff_ms: int = 20
    metadata_retry_backoff_max_ms: int = 100
    default_api_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        SecuritySettings.__post_init__(self)
        addresses(self.bootstrap_servers)
        for name in (one.name for one in fields(self)):
            value = getattr(self, name)
            if isinstance(value, int) and name not in _MAY_BE_NEGATIVE:
                _check(value >= 0, f"{name} must not be negative")
                is_small = value <= INT32_MAX or name == "buffer_memory"
                _check(is_small, f"{name} must be at most {INT32_MAX}")
            if name in _ABOVE_0:
                _check(value > 0, f"{name} must be above 0")


class CommonOptions(SecurityOptions, total=False):
    """The keyword arguments of CommonSettings, without `bootstrap_servers`."""

    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    metadata_retry_backoff_ms: int
    metadata_retry_backoff_max_ms: int
    default_api_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(CommonSettings):
    """The settings of a Producer.

    `enable_idempotence=None` is Kafka's default: on if `acks` is "all", else off.
    `max_in_flight` is Kafka's max.in.flight.requests.per.connection.
    `transactional_id` names the producer across its restarts: a new producer of that id ends an
    older producer's open transaction. It implies idempotence and acks=all. The coordinator aborts a
    transaction that is open for `transaction_timeout_ms`, and then fences its producer.
    `key_serializer`, `value_serializer`: return the bytes of a key or a value; not called for None.
    `partitioner(key, all_partitions, available_partitions)`: returns the partition of a record for
    which `send` has none. `key` is bytes or None; available partitions have a leader (all, if no
    partition has one). Default: murmur2 of the key, as Java's client; without a key, sticky.
    `interceptors`: called in this order.
    """

    acks: Acks = "all"
    enable_idempotence: bool | None = None
    max_in_flight: int = IN_FLIGHT_MAX
    linger_ms: float = 5
    batch_size: int = 16_384  # at 0 each record is a batch of its own, as in Kafka
    buffer_memory: int = 33_554_432
    max_block_ms: int = 60_000
    max_request_size: int = 1_048_576
    compression_type: CompressionType = "none"
    delivery_timeout_ms: int = 120_000
    retries: int = 2_147_483_647
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    partitioner: Partitioner | None = None
    interceptors: Sequence[ProducerInterceptor] = ()

    def __post_init__(self) -> None:
        CommonSettings.__post_init__(self)
        if self.transactional_id is not None:
            _check(bool(self.transactional_id), "transactional_id must not be empty")
            _check(self.acks in {"all", -1}, 'transactional_id needs acks="all"')
            needs = "transactional_id needs enable_idempotence"
            _check(self.enable_idempotence is not False, needs)
            _check(self.retries > 0, "transactional_id needs retries")
        _check(self.max_in_flight >= 1, "max_in_flight must be at least 1")
        if self.enable_idempotence:
            _check(self.acks in {"all", -1}, 'enable_idempotence needs acks="all"')
        if self.idempotent:
            limit = f"an idempotent producer has at most {IN_FLIGHT_MAX} requests in flight"
            _check(self.max_in_flight <= IN_FLIGHT_MAX, limit)
        _check(self.linger_ms >= 0, "linger_ms must not be negative")
        _check(self.buffer_memory >= self.batch_size, "buffer_memory must hold one batch")
        too_short = "delivery_timeout_ms must be at least linger_ms + request_timeout_ms"
        _check(self.delivery_timeout_ms >= self.linger_ms + self.request_timeout_ms, too_short)

    @property
    def idempotent(self) -> bool:
        """True if records are numbered, so that a retry cannot write them twice (KIP-98)."""
        if self.enable_idempotence is None:
            return self.acks in {"all", -1}
        return self.enable_idempotence


class ProducerOptions(CommonOptions, total=False):
    """The keyword arguments of Producer."""

    acks: Acks
    enable_idempotence: bool | None
    max_in_flight: int
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    compression_type: CompressionType
    delivery_timeout_ms: int
    retries: int
    transactional_id: str | None
    transaction_timeout_ms: int
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    partitioner: Partitioner | None
    interceptors: Sequence[ProducerInterceptor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(CommonSettings):
    """The settings of a Consumer. `subscribe` and `commit` need a `group_id`.

    `allow_auto_create_topics` is False, so that a mistyped name is an error and not a topic.
    `auto_offset_reset`: "earliest", "latest", "none" (an error), or the first record that is not
    older than a duration, "by_duration:PT1H" (ISO 8601, KIP-1106).
    `partition_assignment_strategy` lists the assignors of a classic group by preference: names, or
    assignors of your own (`quorumlog.client.Assignor`, or a function). `assignor` is a list of one.
    `key_deserializer`, `value_deserializer`: called with bytes, never with None; if they raise,
    `poll` raises DeserializationError. `interceptors`: called in this order.
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: GroupProtocol = "classic"
    group_remote_assignor: str | None = None
    client_rack: str = ""
    partition_assignment_strategy: Sequence[AnyAssignor] = DEFAULT_ASSIGNORS
    assignor: AnyAssignor | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    auto_offset_reset: OffsetReset = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    isolation_level: IsolationLevel = "read_uncommitted"
    # DEVIATION: Kafka's default is true.
    # docs/decisions/0043-consumer-positions.md
    allow_auto_create_topics: bool = False
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    interceptors: Sequence[ConsumerInterceptor] = ()

    def __post_init__(self) -> None:
        CommonSettings.__post_init__(self)
        too_long = "heartbeat_interval_ms must be below session_timeout_ms"
        _check(self.heartbeat_interval_ms < self.session_timeout_ms, too_long)
        is_classic = self.group_protocol == "classic"
        has_assignor = self.group_remote_assignor is not None
        _check(
            not (is_classic and has_assignor),
            "group_remote_assignor needs group_protocol='consumer'",
        )
        parse_offset_reset(self.auto_offset_reset)
        self._check_assignors()

    def _check_assignors(self) -> None:
        strategy = self.partition_assignment_strategy
        _check(bool(strategy), "partition_assignment_strategy must name at least one assignor")
        if self.assignor is not None:
            both = "give either assignor or partition_assignment_strategy"
            _check(tuple(strategy) == tuple(DEFAULT_ASSIGNORS), both)
            needs = "assignor needs group_protocol='classic': else the coordinator assigns"
            _check(self.group_protocol == "classic", needs)
        given = self.assignors
        names = [one if isinstance(one, str) else named_assignor(one).name for one in given]
        _check(len({*names}) == len(names), f"two assignors have the same name: {names}")

    @property
    def assignors(self) -> tuple[AnyAssignor, ...]:
        """The assignors of a classic group, in order of preference."""
        if self.assignor is not None:
            return (self.assignor,)
        return tuple(self.partition_assignment_strategy)


def check_batches(settings: ConsumerSettings) -> None:
    """Raise ValueError if a setting for single records would have no effect on `poll_batches`."""
    for name in ("key_deserializer", "value_deserializer", "interceptors"):
        _check(not getattr(settings, name), f"poll_batches returns bytes, without {name}: use poll")


class ConsumerOptions(CommonOptions, total=False):
    """The keyword arguments of Consumer."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: GroupProtocol
    group_remote_assignor: str | None
    client_rack: str
    partition_assignment_strategy: Sequence[AnyAssignor]
    assignor: AnyAssignor | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    auto_offset_reset: OffsetReset
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: IsolationLevel
    allow_auto_create_topics: bool
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    interceptors: Sequence[ConsumerInterceptor]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(CommonSettings):
    """The settings of an Admin."""


class AdminOptions(CommonOptions, total=False):
    """The keyword arguments of Admin."""


Settings = TypeVar("Settings", bound=CommonSettings)


def build(
    cls: type[Settings], bootstrap_servers: BootstrapServers, options: Mapping[str, object]
) -> Settings:
    """Return the settings for keyword arguments.

    Raises TypeError for an unknown name, with the nearest valid name, for a setting of Kafka's that
    is not supported yet, or for a value of another type; ValueError for an illegal value.
    """
    kinds = get_type_hints(cls)
    for name, value in options.items():
        if name not in kinds:
            setting = name.replace(".", "_")
            family = setting.partition("_")[0]  # ssl_keystore_location, sasl_mechanism, ...
            why = _REASONS.get(setting) or _REASONS.get(family)
            hint = _hint(setting, kinds)
            if why is not None and not hint:
                raise TypeError(f"setting {name!r} is not supported yet: {why}")
            raise TypeError(f"unknown setting {name!r}{hint}")
        if not _fits(kinds[name], value):
            error = ValueError if _is_choice(kinds[name], value) else TypeError
            shown = type(value).__name__ if name in SECRET else repr(value)
            raise error(f"{name} must be {_described(kinds[name])}, not {shown}")
    values: dict[str, Any] = {**options}  # the dataclass checks them
    return cls(bootstrap_servers=bootstrap_servers, **values)


def _hint(name: str, known: Iterable[str]) -> str:
    """Return the replacement for an unknown setting, or a close name; "" if there is neither.

    All words must be close: `session_timeout_ms` is no hint for `consumer_timeout_ms`.
    """
    if (instead := _OF_OTHERS.get(name)) is not None:
        return f": {instead}"
    for near in difflib.get_close_matches(name, list(known)):
        words = [near.replace("_", ""), *near.split("_")]
        if all(difflib.get_close_matches(word, words, n=1) for word in name.split("_")):
            return f"; did you mean {near!r}?"
    return ""


def with_servers(init: Callable[P, None]) -> Callable[P, None]:
    """Wrap a client's constructor, to explain wrong positional arguments.

    The constructor raises TypeError without `bootstrap_servers`, and for any other positional
    argument.
    """

    @wraps(init)
    def checked(*given: P.args, **options: P.kwargs) -> None:
        client, *places = given
        kind = type(client).__name__
        if not places and "bootstrap_servers" not in options:
            raise TypeError(f"{kind}: bootstrap_servers is missing: {kind}('host:port', ...)")
        if len(places) > 1:
            raise TypeError(
                f"{kind} takes bootstrap_servers, and settings by their names:"
                f" {kind}('host:port', client_id=...), not {places[1]!r} without a name"
                + ("; subscribe([...]) takes the topics" if "Consumer" in kind else "")
            )
        init(*given, **options)

    return checked


def addresses(bootstrap_servers: BootstrapServers) -> list[Address]:
    """Split "host:port,host:port", or a sequence of "host:port".

    Raises TypeError for other types, ValueError for an illegal address.
    """
    if isinstance(bootstrap_servers, Mapping):
        raise TypeError(
            "bootstrap_servers is 'host:port', and settings are keyword arguments:"
            " Producer('host:port', client_id=...), not a dict of Kafka's names"
        )
    texts = bootstrap_servers
    if isinstance(texts, str):
        texts = texts.split(",")
    is_list = isinstance(texts, Sequence) and not isinstance(texts, bytes)
    if not is_list or not all(isinstance(text, str) for text in texts):
        kind = "'host:port,host:port' or a list of 'host:port'"
        raise TypeError(f"bootstrap_servers is {kind}, not {bootstrap_servers!r}")
    found = [_address(text.strip()) for text in texts if text.strip()]
    _check(bool(found), "bootstrap_servers must name at least one host:port")
    return found


def _address(text: str) -> Address:
    scheme, separator, rest = text.rpartition("://")
    if separator:
        raise ValueError(f"bootstrap_servers: {text!r}: write {rest!r}, without '{scheme}://'")
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not host:
        raise ValueError(f"bootstrap_servers: {text!r} is not host:port")
    if not 1 <= int(port) <= PORT_MAX:
        raise ValueError(f"bootstrap_servers: {text!r}: a port is 1 to {PORT_MAX}")
    return host.strip("[]"), int(port)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _fits(kind: Any, value: object) -> bool:
    """Return whether `value` has the type `kind` of a setting."""
    origin, choices = get_origin(kind), get_args(kind)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in choices)
    if origin is Callable:
        return callable(value) and not iscoroutinefunction(value)
    if origin is Sequence:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(_fits(choices[0], one) for one in cast(Sequence[object], value))
    if choices:
        return any(_fits(one, value) for one in choices)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _is_choice(kind: Any, value: object) -> bool:
    """Return whether a setting is one of some words, and `value` is a word."""
    kinds = (kind,) if get_origin(kind) is Sequence else (kind, *get_args(kind))
    return any(get_origin(one) is Literal for one in kinds) and isinstance(value, str | int)


def _described(kind: Any) -> str:
    origin, choices = get_origin(kind), get_args(kind)
    if origin is Callable:
        return "a synchronous function"
    if origin is Literal:
        return "one of " + ", ".join(repr(one) for one in choices)
    if origin is Sequence:
        return f"a list, each {_described(choices[0])}"
    if choices:
        return " or ".join(_described(one) for one in choices)
    return "None" if kind is type(None) else f"of type {kind.__name__}"
