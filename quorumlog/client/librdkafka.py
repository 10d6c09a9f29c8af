"""TLS and SASL of a client in the configuration of librdkafka."""

from typing import Any, Final

from quorumlog import clock
from quorumlog.client.security import SecuritySettings, token_of

TOKENS: Final = "oauth_cb"
"""The source of tokens in the configuration."""
_TOKEN_LIFETIME_S: Final = 300.0  # librdkafka requests a new one before


def librdkafka_settings(security: SecuritySettings) -> dict[str, Any]:
    """Return the configuration of librdkafka."""
    found: dict[str, Any] = {"security.protocol": security.security_protocol}
    for kind, value in (
        ("ca", security.ssl_ca),
        ("certificate", security.ssl_certificate),
        ("key", security.ssl_key),
    ):
        if value is not None:
            form = "pem" if "-----BEGIN" in str(value) else "location"
            found[f"ssl.{kind}.{form}"] = str(value)
    if security.ssl_key_password is not None:
        found["ssl.key.password"] = security.ssl_key_password
    if not security.ssl_check_hostname:
        found["ssl.endpoint.identification.algorithm"] = "none"
    if security.sasl_mechanism is not None:
        found["sasl.mechanism"] = security.sasl_mechanism
    if security.sasl_mechanism == "OAUTHBEARER":
        found[TOKENS] = lambda _: _expiring(security)
    elif security.sasl_mechanism is not None:
        found["sasl.username"] = security.sasl_username
        found["sasl.password"] = security.sasl_password
    return found


def _expiring(security: SecuritySettings) -> tuple[str, float]:
    return token_of(security), clock.wall_clock_ms() / 1000 + _TOKEN_LIFETIME_S
