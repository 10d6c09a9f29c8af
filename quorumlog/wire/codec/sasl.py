"""SASL mechanisms, as a client computes their tokens: PLAIN, SCRAM and OAUTHBEARER.

A mechanism has no socket, no clock and no chance: its owner passes the nonce, and carries tokens.
Tokens of a broker are untrusted: a wrong one raises `SaslFailure`, and so does a broker that cannot
prove that it has the user's keys. Sources: RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM; Kafka
takes names and passwords as UTF-8, without SASLprep), RFC 7628 (OAUTHBEARER), KIP-84, KIP-255.
"""

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import new as new_hash
from typing import Final, Protocol

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SCRAM_HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 131_072
"""Eight times the maximum of Kafka's brokers. More would block the client for a broker's number."""
NONCE_BYTES: Final = 24
_GS2_HEADER: Final = b"n,,"  # no channel binding, no other identity
_NONCE: Final = re.compile(rb"[\x21-\x2b\x2d-\x7e]+")
_FIRST: Final = re.compile(
    rb"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/]+={0,2}),i=(?P<iterations>[0-9]{1,9})"
    rb"(?:,[A-Za-z]=[^,\0]+)*"
)
_FINAL: Final = re.compile(rb"v=(?P<signature>[A-Za-z0-9+/]+={0,2})(?:,[A-Za-z]=[^,\0]+)*")
_ERROR: Final = re.compile(rb"e=([^,\0]+)")
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_EXTENSION_KEY: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x20-\x7e\t\r\n]+")
_SEPARATOR: Final = b"\x01"


class SaslFailure(Exception):
    """Refused by the broker, or the broker did not prove its identity. The text is the reason."""


class SaslClient(Protocol):
    """One authentication, from its first token to its end."""

    def first(self) -> bytes:
        """Return the first token."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the next token, None at the end. Raises SaslFailure for a wrong challenge."""


class PlainClient:
    """PLAIN (RFC 4616): one token with the password, which only TLS hides from the network."""

    def __init__(self, username: str, password: str) -> None:
        """Raise SaslFailure if a value is empty or contains NUL."""
        for name, value in (("user name", username), ("password", password)):
            if not value or "\0" in value:
                raise SaslFailure(f"PLAIN: the {name} is empty or contains a NUL")
        self._token: Final = b"\0%b\0%b" % (username.encode(), password.encode())

    def first(self) -> bytes:
        """Return the token with user name and password."""
        return self._token

    def answer(self, challenge: bytes) -> None:
        """End: the broker accepted the token."""


class ScramClient:
    """SCRAM (RFC 5802): the password never leaves the client, and the broker proves its keys, too.

    Invariants:
      1. No proof is sent for a nonce that does not begin with the client's, nor for iterations
         outside `[ITERATIONS_MIN, ITERATIONS_MAX]`: few would make a stolen proof easy to guess.
      2. The authentication ends only with the broker's signature of exactly these messages.
    """

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        """`nonce`: printable ASCII without a comma, from a generator that is fit for secrets."""
        if not username or not password:
            raise SaslFailure(f"{mechanism}: the user name or the password is empty")
        self._hash: Final = SCRAM_HASHES[mechanism]
        self._password: Final = password.encode()
        self._nonce: Final = nonce.encode()
        name = username.replace("=", "=3D").replace(",", "=2C").encode()
        self._first_bare: Final = b"n=%b,r=%b" % (name, self._nonce)
        self._signature = b""  # the one to expect, after the first challenge

    def first(self) -> bytes:
        """Return the user name and the nonce."""
        return _GS2_HEADER + self._first_bare

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the proof for the first challenge; check the broker's signature in the second."""
        if not self._signature:
            return self._prove(challenge)
        if (refusal := _ERROR.match(challenge)) is not None:
            raise SaslFailure(f"the broker refused: {refusal[1].decode(errors='replace')}")
        final = _FINAL.fullmatch(challenge)
        if final is None:
            raise SaslFailure("the broker's last SCRAM message is malformed")
        if not hmac.compare_digest(_decoded(final["signature"]), self._signature):
            raise SaslFailure(
                "the broker's SCRAM signature is wrong: it does not have the keys of this user"
            )
        return None

    def _prove(self, challenge: bytes) -> bytes:
        first = _FIRST.fullmatch(challenge)
        if first is None:
            raise SaslFailure("the broker's first SCRAM message is malformed")
        nonce, iterations = first["nonce"], int(first["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslFailure("the broker's SCRAM nonce does not continue the client's")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            limits = f"{ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
            raise SaslFailure(f"the broker requests {iterations} SCRAM iterations; {limits}")
        salted = _kept_password(self._hash, self._password, _decoded(first["salt"]), iterations)
        without_proof = b"c=%b,r=%b" % (b64encode(_GS2_HEADER), nonce)
        message = b",".join((self._first_bare, challenge, without_proof))
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = new_hash(self._hash, client_key).digest()
        proof = xor(client_key, hmac.digest(stored_key, message, self._hash))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._signature = hmac.digest(server_key, message, self._hash)
        return b"%b,p=%b" % (without_proof, b64encode(proof))


class OAuthBearerClient:
    """OAUTHBEARER (RFC 7628): one bearer token, with extensions (KIP-342)."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        """Raise SaslFailure for a token or an extension that the format does not allow."""
        if _TOKEN.fullmatch(token) is None:
            raise SaslFailure("OAUTHBEARER: the token is empty or has characters of no token")
        pairs = [b"auth=Bearer " + token.encode()]
        for key, value in extensions.items():
            if key == "auth" or _EXTENSION_KEY.fullmatch(key) is None:
                raise SaslFailure(f"OAUTHBEARER: {key!r} is no name of an extension")
            if _EXTENSION_VALUE.fullmatch(value) is None:
                raise SaslFailure(f"OAUTHBEARER: extension {key} is empty or not printable ASCII")
            pairs.append(f"{key}={value}".encode())
        joined = _SEPARATOR.join(pairs)
        self._token: Final = _GS2_HEADER + _SEPARATOR + joined + 2 * _SEPARATOR

    def first(self) -> bytes:
        """Return the token and the extensions."""
        return self._token

    def answer(self, challenge: bytes) -> bytes | None:
        """End after an empty challenge; else the broker refuses, and its reason follows."""
        return _SEPARATOR if challenge else None


def salted_password(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return Hi(password, salt, iterations), RFC 5802 section 2.2. Takes about a us for each."""
    return _pbkdf2()(hash_name, password, salt, iterations)


_kept_password: Final = lru_cache(maxsize=8)(salted_password)
"""For clients: RFC 5802 section 3 lets them keep it, so only the first connection computes it."""


def xor(one: bytes, other: bytes) -> bytes:
    """Return the exclusive or of two values of equal length."""
    size = len(one)
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(size)


def canonical_base64(text: bytes | str) -> bytes:
    """Return the decoded bytes. Raises ValueError for another text of them than the canonical one.

    The last character may have bits that no byte takes: SCRAM requires zeros (RFC 5802).
    """
    decoded = b64decode(text, validate=True)
    if b64encode(decoded) != (text.encode() if isinstance(text, str) else text):
        raise ValueError("base64 whose unused bits are not zero")
    return decoded


def _pbkdf2() -> Callable[[str, bytes, bytes, int], bytes]:
    try:
        from _hashlib import pbkdf2_hmac  # a node imports `hashlib` without OpenSSL
    except ImportError:
        from hashlib import pbkdf2_hmac
    return pbkdf2_hmac


def _decoded(text: bytes) -> bytes:
    try:
        return canonical_base64(text)
    except ValueError as error:
        raise SaslFailure("the broker sent bytes that are not base64") from error
