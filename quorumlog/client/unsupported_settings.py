"""Kafka's client settings for features that these clients do not have.

They are refused, not ignored: an ignored setting would promise a missing feature (such as an
encrypted connection). The error is not the error of a mistyped name.
"""

from collections.abc import Mapping
from typing import Final

_SERIALIZERS: Final = "keys and values are bytes: encode and decode them yourself"
_PLAIN: Final = "connections are plain TCP, without TLS and SASL"
_METRICS: Final = "the clients report no metrics"

_REASONS: Final[Mapping[str, str]] = {
    "config_providers": "values are taken as they are",
    "enable_metrics_push": _METRICS,
    "interceptor_classes": "there are no interceptors",
    "interceptors": "there are no interceptors",
    "key_deserializer": _SERIALIZERS,
    "key_serializer": _SERIALIZERS,
    "metric_reporters": _METRICS,
    "metrics_recording_level": _METRICS,
    "partitioner": "choose the partition in send(..., partition=...)",
    "partitioner_class": "choose the partition in send(..., partition=...)",
    "sasl": _PLAIN,
    "security_protocol": _PLAIN,
    "ssl": _PLAIN,
    "transaction_two_phase_commit_enable": "there is no two-phase commit (KIP-939)",
    "value_deserializer": _SERIALIZERS,
    "value_serializer": _SERIALIZERS,
}
_OF_OTHERS: Final[Mapping[str, str]] = {
    "api_version": "versions are agreed upon with each broker",
    "consumer_timeout_ms": "poll(timeout_ms) returns after that time",
    "loop": "a client belongs to the event loop that it is started in",
    "topic": "subscribe([...]) takes the topics",
    "topics": "subscribe([...]) takes the topics",
}


def instead_of(name: str) -> str | None:
    """Return the replacement for a setting of other Python clients; None for other names."""
    return _OF_OTHERS.get(name)


def why_unsupported(name: str) -> str | None:
    """Return why a setting of Kafka's is not supported; None for other names."""
    setting = name.replace(".", "_")
    family = setting.partition("_")[0]  # ssl_keystore_location, sasl_mechanism, ...
    return _REASONS.get(setting) or _REASONS.get(family)
