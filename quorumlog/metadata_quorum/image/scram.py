"""SCRAM credentials, as a server stores them in place of passwords (KIP-554, RFC 5802)."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384


class ScramMechanism(IntEnum):
    """Hash functions of SCRAM: Kafka's codes."""

    SHA_256 = 1
    SHA_512 = 2


_HASHES: Final[Mapping[int, str]] = MappingProxyType(
    {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The keys that verify a password without revealing it."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def credential_of(
    mechanism: int, *, iterations: int, salt: bytes, salted_password: bytes
) -> ScramCredential:
    """Return the credential of a salted password (RFC 5802, section 3)."""
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramCredential(
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
    )
