"""OAUTHBEARER: a bearer token, checked by its claims.

A failed check is answered by a challenge with a JSON text; the client confirms it by one byte,
and only then does the authentication fail. Sources: RFC 7628 and 7515, KIP-255, Kafka's
OAuthBearerSaslServer, OAuthBearerUnsecuredJws and DefaultJwtValidator.
"""

import binascii
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from quorumlog.broker.authentication.core.exchange import (
    Authenticated,
    Challenge,
    Outcome,
    Rejected,
)
from quorumlog.settings.sasl import TokenSettings

_SEPARATOR: Final = "\x01"
_CONFIRMATION: Final = b"\x01"
_NAME: Final = r"(?:[\x02-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIR: Final = r"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
_FIRST: Final = re.compile(rf"n,(?:a=(?P<other>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[-_.a-zA-Z0-9]+)")
_BASE64: Final = re.compile(r"[-_a-zA-Z0-9]*")
_SECTIONS: Final = 3
_LATEST_MS: Final = 2**62  # a lifetime must fit into 64 bits

Claims: TypeAlias = Mapping[str, Any]


class BadToken(Exception):
    """A token that is not accepted. `scope`: the scopes that it lacks."""

    def __init__(self, reason: str, scope: str = "") -> None:
        super().__init__(reason)
        self.scope: Final = scope


ClaimsOf: TypeAlias = Callable[[str], Claims]
"""Returns the claims of a token whose signature is right. Raises BadToken."""


def unsigned_claims(token: str) -> Claims:
    """Return the claims of a token without a signature. Raises BadToken."""
    sections = token.split(".")
    if len(sections) != _SECTIONS or sections[2]:
        raise BadToken("the token is signed, or no compact JWS")
    header, claims = map(_section, sections[:2])
    if header.get("alg") != "none":
        raise BadToken(f"the algorithm is {header.get('alg')!r}, not 'none'")
    return claims


def _section(text: str) -> dict[str, Any]:
    if _BASE64.fullmatch(text) is None:
        raise BadToken("a section is not base64url")
    try:
        found = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise BadToken("a section is no JSON in base64url") from error
    if not isinstance(found, dict):
        raise BadToken("a section is no JSON object")
    return found


def checked(claims: Claims, settings: TokenSettings, wall_ms: int) -> Authenticated:
    """Return the user and the expiry of a token with these claims. Raises BadToken."""
    user = _user(claims, settings.principal_claim)
    expires_ms, issued_ms = _time_ms(claims, "exp"), _time_ms(claims, "iat")
    if expires_ms is None:
        raise BadToken("the claim 'exp' is missing")
    if expires_ms <= wall_ms - settings.clock_skew_ms:
        raise BadToken(f"the token of {user!r} expired {wall_ms - expires_ms} ms ago")
    if issued_ms is not None and issued_ms > wall_ms + settings.clock_skew_ms:
        raise BadToken(f"the token of {user!r} will be issued in {issued_ms - wall_ms} ms")
    if issued_ms is not None and issued_ms >= expires_ms:
        raise BadToken(f"the token of {user!r} expires before it is issued")
    not_before_ms = _time_ms(claims, "nbf") if settings.jwks_url else None
    if not_before_ms is not None and not_before_ms > wall_ms + settings.clock_skew_ms:
        raise BadToken(f"the token of {user!r} is valid in {not_before_ms - wall_ms} ms")
    if settings.issuer is not None and claims.get("iss") != settings.issuer:
        raise BadToken(f"the issuer is {claims.get('iss')!r}, not {settings.issuer!r}")
    if settings.audiences and not {*_texts(claims, "aud")} & {*settings.audiences}:
        raise BadToken(f"the audience is {claims.get('aud')!r}")
    required = settings.required_scopes
    if not {*required} <= {*_texts(claims, settings.scope_claim)}:
        raise BadToken(f"the token of {user!r} lacks a scope", scope=" ".join(required))
    return Authenticated(user=user, expires_ms=expires_ms)


def _user(claims: Claims, name: str) -> str:
    user = claims.get(name)
    if not isinstance(user, str) or not user.strip():
        raise BadToken(f"the claim {name!r} has no name")
    if any("\ud800" <= one <= "\udfff" for one in user):  # JSON may have them; no UTF-8 has
        raise BadToken(f"the claim {name!r} is no Unicode text")
    return user.strip()


def _time_ms(claims: Claims, name: str) -> int | None:
    """Return the time (ms since 1970) of a claim in seconds."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken(f"the claim {name!r} is no number")
    try:
        return min(int(value * 1000), _LATEST_MS)
    except (OverflowError, ValueError) as error:  # inf, nan
        raise BadToken(f"the claim {name!r} is no time") from error


def _texts(claims: Claims, name: str) -> list[str]:
    """Return the texts of a claim: a list, or a text with blanks between them."""
    value = claims.get(name, "")
    texts = value.split() if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise BadToken(f"the claim {name!r} is neither a text nor a list of texts")
    return texts


class BearerExchange:
    """One token of the client and, if it fails, the client's confirmation."""

    def __init__(self, settings: TokenSettings, claims_of: ClaimsOf = unsigned_claims) -> None:
        self._settings: Final = settings
        self._claims_of: Final = claims_of
        self._failure: tuple[str, str] | None = None  # the reason, and the JSON for the client

    def receive(self, token: bytes, wall_ms: int) -> Outcome:
        """Return the outcome of the client's first message or its confirmation of the failure."""
        if self._failure is not None:
            reason, message = self._failure
            return Rejected(reason=reason, message=message if token == _CONFIRMATION else None)
        try:
            found = _FIRST.fullmatch(token.decode("ascii"))
        except UnicodeDecodeError:
            found = None
        if found is None:
            return Rejected(reason="the message is malformed, or requires a channel binding")
        pairs = [pair.partition("=") for pair in found["pairs"].split(_SEPARATOR) if pair]
        bearer = _BEARER.fullmatch(next((value for key, _, value in pairs if key == "auth"), ""))
        if bearer is None:
            return Rejected(reason="the message has no bearer token")
        return self._check(bearer["token"], found["other"] or "", wall_ms)

    def _check(self, token: str, other: str, wall_ms: int) -> Outcome:
        try:
            outcome = checked(self._claims_of(token), self._settings, wall_ms)
        except BadToken as error:
            status = "insufficient_scope" if error.scope else "invalid_token"
            answer = {"status": status} | ({"scope": error.scope} if error.scope else {})
            text = json.dumps(answer, separators=(",", ":"))
            self._failure = str(error), text
            return Challenge(token=text.encode())
        if other.replace("=2C", ",").replace("=3D", "=") not in {"", outcome.user}:
            return Rejected(
                reason=f"{outcome.user!r} requested the authorization id {other!r}",
                message="Authentication failed: Client requested an authorization id that is "
                "different from the token's principal name",
            )
        return outcome
