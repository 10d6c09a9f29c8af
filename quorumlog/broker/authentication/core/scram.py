"""SCRAM-SHA-256 and SCRAM-SHA-512: the server's messages and proofs.

Sources: RFC 5802 and 7677, KIP-84, Kafka's ScramSaslServer and ScramMessages.

# DEVIATION: Kafka fails at the first message of an unknown user. Here the exchange goes on with a
# salt of its own, always the same for this user, and fails at the proof: the client cannot find out
# whether the user exists. docs/decisions/0061-sasl.md
"""

import hashlib
import hmac
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.broker.authentication.core.exchange import (
    Authenticated,
    Challenge,
    Outcome,
    Rejected,
    other_user,
)
from quorumlog.metadata_quorum.image.scram import ITERATIONS_MIN, ScramCredential, ScramMechanism
from quorumlog.wire.codec.sasl import canonical_base64

HASHES: Final[Mapping[int, str]] = {
    ScramMechanism.SHA_256: "sha256",
    ScramMechanism.SHA_512: "sha512",
}
NONCE_BYTES: Final = 18  # of randomness; 24 characters
_SALT_BYTES: Final = 16  # of a user that does not exist, while none does
_NAME: Final = r"(?:[^\0=,]|=2C|=3D)+"
_VALUE: Final = r"[^\0,]+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_EXTENSIONS: Final = rf"(?P<extensions>(?:,[A-Za-z]+={_VALUE})*)"
_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<other>{_NAME}))?,)"
    rf"(?P<bare>(?:m={_VALUE},)?n=(?P<user>{_NAME}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
)
_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<header>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
    rf",p=(?P<proof>{_BASE64})"
)
_DELEGATION: Final = ",tokenauth=true"

Credentials = Mapping[tuple[str, int], ScramCredential]


class UnknownUsers:
    """Makes the credentials of users that do not exist: like those of the others, never valid.

    `secret`: the same at all brokers of a cluster and at each start. The salts depend on it, so
    that a client cannot compute them.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret: Final = secret
        self._seen: Credentials | None = None
        self._usual: dict[int, tuple[int, int]] = {}  # iterations and salt bytes, by mechanism

    def credential(self, user: str, mechanism: int, stored: Credentials) -> ScramCredential:
        """Return the credential; its iterations and its salt's size are the most frequent."""
        if stored is not self._seen:
            self._seen, self._usual = stored, {}
        if mechanism not in self._usual:
            sizes = Counter(
                (one.iterations, len(one.salt))
                for (_, its_mechanism), one in stored.items()
                if its_mechanism == mechanism
            )
            most = max(sizes.items(), key=lambda item: (item[1], item[0]), default=None)
            self._usual[mechanism] = most[0] if most else (ITERATIONS_MIN, _SALT_BYTES)
        iterations, salt_bytes = self._usual[mechanism]
        key = hmac.digest(self._secret, f"{mechanism} {user}".encode(), "sha256")
        size = hashlib.new(HASHES[mechanism]).digest_size
        return ScramCredential(
            iterations=iterations,
            salt=hashlib.shake_256(key).digest(salt_bytes),
            stored_key=bytes(size),
            server_key=bytes(size),
        )


class ScramExchange:
    """Two messages of the client: its name with a nonce, then the proof of its password.

    The credential is read at the first. `nonce`: printable, without a comma, never used before.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: Callable[[], Credentials],
        unknown: UnknownUsers,
        nonce: str,
    ) -> None:
        self._mechanism: Final = mechanism
        self._hash: Final = HASHES[mechanism]
        self._credentials: Final = credentials
        self._unknown: Final = unknown
        self._nonce = nonce
        self._user = ""
        self._credential: ScramCredential | None = None
        self._exists = False
        self._header = self._messages = b""

    def receive(self, token: bytes, wall_ms: int) -> Outcome:
        """Return the outcome of the client's first or final message."""
        del wall_ms  # passwords do not expire
        try:
            message = token.decode()
        except UnicodeDecodeError:
            return Rejected(reason="the message is not UTF-8")
        if self._credential is None:
            return self._receive_first(message)
        return self._receive_final(message, self._credential)

    def _receive_first(self, message: str) -> Outcome:
        found = _FIRST.fullmatch(message)
        if found is None:
            return Rejected(reason="the first message is malformed, or requires a channel binding")
        user, other = _name(found["user"]), _name(found["other"] or "")
        if other not in {"", user}:
            return other_user(user, other)
        stored = self._credentials()
        credential = stored.get((user, self._mechanism))
        self._exists = credential is not None and _DELEGATION not in found["extensions"]
        if credential is None or not self._exists:
            credential = self._unknown.credential(user, self._mechanism, stored)
        self._user, self._credential = user, credential
        self._header = found["header"].encode()
        self._nonce = found["nonce"] + self._nonce
        salt = b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}".encode()
        self._messages = found["bare"].encode() + b"," + answer
        return Challenge(token=answer)

    def _receive_final(self, message: str, credential: ScramCredential) -> Outcome:
        found = _FINAL.fullmatch(message)
        if found is None:
            return Rejected(reason="the final message is malformed")
        try:
            header, proof = (canonical_base64(found[name]) for name in ("header", "proof"))
        except ValueError:
            return Rejected(reason="the final message has no valid base64")
        if header not in {self._header, b"n,,"}:  # some clients leave their authorization id out
            return Rejected(reason="the final message has another header than the first")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            return Rejected(reason="the final message has another nonce")
        return self._check_proof(credential, found["unproved"].encode(), proof)

    def _check_proof(self, credential: ScramCredential, unproved: bytes, proof: bytes) -> Outcome:
        signed = self._messages + b"," + unproved
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            return Rejected(reason="the proof has another size than the hash")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        shown = hashlib.new(self._hash, client_key).digest()
        is_proved = hmac.compare_digest(shown, credential.stored_key)
        if not is_proved or not self._exists:
            was = "wrong password of" if self._exists else "no credential of"
            return Rejected(reason=f"{was} {self._user!r}")
        verifier = b64encode(hmac.digest(credential.server_key, signed, self._hash))
        return Authenticated(user=self._user, token=b"v=" + verifier)


def _name(encoded: str) -> str:
    return encoded.replace("=2C", ",").replace("=3D", "=")
