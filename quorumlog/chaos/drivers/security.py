"""TLS and SASL of the drivers: one description, in the options of each library."""

import asyncio
from collections.abc import Mapping
from copy import copy
from types import MappingProxyType
from typing import Any, Final, Self

from quorumlog.client.security import SecuritySettings, token_of

PLAINTEXT: Final = SecuritySettings()
NO_PROTECTION: Final[Mapping[str, Any]] = MappingProxyType({})
"""The protection of clients of quorumlog, as arguments, in plain text: `of_client(PLAINTEXT)`."""


class SecuredDriver:
    """A driver that can reach clusters with TLS and SASL.

    `bootstrap_name`: the library's name of the addresses. `protection`: its options.
    """

    bootstrap_name = "bootstrap_servers"
    protection: Mapping[str, Any] = NO_PROTECTION

    @staticmethod
    def options_of(security: SecuritySettings) -> dict[str, Any]:
        """Return the protection in the options of the library. Raises ValueError for its files."""
        raise NotImplementedError

    def secured(self, security: SecuritySettings) -> Self:
        """Return this driver for clusters with this protection.

        Raises ValueError for files that cannot be used.
        """
        driver = copy(self)
        driver.protection = self.options_of(security)
        return driver

    def _at(self, bootstrap: str) -> dict[str, Any]:
        """Return the options by which a client reaches a cluster."""
        return {self.bootstrap_name: bootstrap, **self.protection}


def of_client(security: SecuritySettings) -> dict[str, Any]:
    """Return arguments of quorumlog's clients."""
    security.connection_security()  # wrong files are found before the run
    return {
        name: value
        for name in SecuritySettings.__dataclass_fields__
        if (value := getattr(security, name)) != getattr(PLAINTEXT, name)
    }


def of_python(security: SecuritySettings) -> dict[str, Any]:
    """Return arguments that aiokafka and kafka-python share; OAUTHBEARER is their own."""
    found: dict[str, Any] = {"security_protocol": security.security_protocol}
    if (tls := security.connection_security().tls) is not None:
        found["ssl_context"] = tls
    if security.sasl_mechanism is not None:
        found["sasl_mechanism"] = security.sasl_mechanism
    if security.sasl_username is not None:
        found["sasl_plain_username"] = security.sasl_username
        found["sasl_plain_password"] = security.sasl_password
    return found


def of_aiokafka(security: SecuritySettings) -> dict[str, Any]:
    """Return arguments of aiokafka's clients."""
    found = of_python(security)
    if security.sasl_mechanism == "OAUTHBEARER":
        from aiokafka.abc import AbstractTokenProvider

        class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
            async def token(self) -> str:
                return await asyncio.to_thread(token_of, security)  # it may call an issuer

        found["sasl_oauth_token_provider"] = Tokens()
    return found


def of_kafka_python(security: SecuritySettings) -> dict[str, Any]:
    """Return arguments of kafka-python's clients."""
    found = of_python(security)
    if security.sasl_mechanism == "OAUTHBEARER":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
            def token(self) -> str:
                return token_of(security)

        found["sasl_oauth_token_provider"] = Tokens()
    return found
