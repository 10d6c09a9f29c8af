"""The settings of a subscription to metrics of clients (KIP-714). Source: ClientMetricsConfigs.

A subscription matches a client if each of its patterns matches the client's property as a whole.
A pattern runs on a broker's event loop, on text that a client chose: patterns whose time may grow
without bound in Python's `re` need RE2, the extra `re2`.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from quorumlog.settings.kinds import INT_MAX, BadValue, ConfigType, Kind, whole
from quorumlog.settings.servers import ServerSetting

INTERVAL: Final = "interval.ms"
MATCH: Final = "match"
METRICS: Final = "metrics"
ALL_METRICS: Final = "*"
INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000
PROPERTIES: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""The properties of a client that a pattern may name."""
TEXT_MAX: Final = 255  # characters of a pattern, and of a property that is compared

Matches = Callable[[str], object]
"""Whether a text matches a pattern as a whole: true or false."""


def _entries(text: str) -> list[str]:
    return [entry for entry in (part.strip() for part in text.split(",")) if entry]


def _normal_list(text: str) -> str:
    return ",".join(_entries(text))


def _normal_match(text: str) -> str:
    patterns(text)
    return _normal_list(text)


def patterns(text: str) -> dict[str, Matches]:
    """Return the patterns of a value of `match`, by property. Raises BadValue."""
    found = {}
    for entry in _entries(text):
        name, _, pattern = (part.strip() for part in entry.partition("="))
        if name not in PROPERTIES or not pattern or "=" in pattern:
            raise BadValue(
                f"Illegal client matching pattern: {entry}: it must be property=expression, with "
                f"one of {', '.join(PROPERTIES)}"
            )
        found[name] = _compiled(pattern, entry)
    return found


def _compiled(pattern: str, entry: str) -> Matches:
    if len(pattern) > TEXT_MAX:
        raise BadValue(f"a client matching pattern has more than {TEXT_MAX} characters")
    # Without groups and with one repetition, the time of a match is bounded.
    is_simple = "(" not in pattern and len(re.findall(r"[*+?{]", pattern)) <= 1
    try:
        compiled: Any = re.compile(pattern) if is_simple else _compiled_by_re2(pattern)
    except (re.error, OverflowError) as error:
        raise BadValue(f"Illegal client matching pattern: {entry}: {error}") from error
    matches: Matches = compiled.fullmatch
    return matches


def _compiled_by_re2(pattern: str) -> Any:
    try:
        import re2
    except ModuleNotFoundError:
        raise BadValue(
            "a client matching pattern with a group, or with more than one repetition, needs "
            "google-re2, the extra re2 of this installation"
        ) from None
    options = re2.Options()
    options.log_errors = False  # a request's mistake must not fill the log
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise BadValue(f"Illegal client matching pattern: {pattern}: {error}") from error


def metrics_of(configs: Mapping[str, str]) -> list[str]:
    """Return the prefixes of names that a subscription selects; `*`: all metrics."""
    return _entries(configs.get(METRICS, ""))


def interval_of(configs: Mapping[str, str]) -> int:
    """Return the interval of a subscription, in ms."""
    return int(configs.get(INTERVAL, INTERVAL_MS_DEFAULT))


def interval_problem(configs: Mapping[str, str]) -> str | None:
    """Return why a subscription cannot have its interval, or None."""
    if INTERVAL_MS_MIN <= interval_of(configs) <= INTERVAL_MS_MAX:
        return None
    return (
        f"Invalid value {configs[INTERVAL]} for {INTERVAL}, interval must be between "
        f"{INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 hour)"
    )


def _list(normalize: Callable[[str], str]) -> Kind[str]:
    return Kind(type=ConfigType.LIST, normalize=normalize, parse=str)


CLIENT_METRICS: Final[Mapping[str, ServerSetting[Any]]] = MappingProxyType(
    {
        INTERVAL: ServerSetting(
            name=INTERVAL,
            kind=whole(ConfigType.INT, -INT_MAX, INT_MAX),
            default=str(INTERVAL_MS_DEFAULT),
            documentation="Time between two reports of a client.",
        ),
        MATCH: ServerSetting(
            name=MATCH,
            kind=_list(_normal_match),
            default="",
            documentation="Clients that report: property=expression, each of them must match; "
            "without any, all clients.",
        ),
        METRICS: ServerSetting(
            name=METRICS,
            kind=_list(_normal_list),
            default="",
            documentation="Prefixes of the names of the metrics that clients report; *: all.",
        ),
    }
)
"""Every row, by the name of its setting."""
