"""An issuer of OAUTHBEARER tokens on the control listener, for tests of clients.

    POST TOKEN_PATH       client credentials -> a token, signed with RS256
    GET  KEYS_PATH        the public key
    GET  DISCOVERY_PATH   the URLs of both

A client's id and secret are a user with a SCRAM credential and its password. The parameters
`expires_in` (seconds, also negative: an expired token), `scope` and `audience` choose the claims.
The key is in a file that all nodes of a cluster share; beside it, `<file>.jwks.json` has the public
key. Sources: RFC 6749 section 4.4, RFC 7517, RFC 8414, OpenID Connect Discovery 1.0.
"""

import asyncio
import hmac
import json
import os
from base64 import b64decode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote_plus

from aiohttp import web

from quorumlog.chance import random_bytes
from quorumlog.clock import wall_clock_ms
from quorumlog.extras import why_no_packages
from quorumlog.metadata_quorum.image.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
)
from quorumlog.node.listeners import StartFailed
from quorumlog.wire.codec.sasl import salted_password

if TYPE_CHECKING:
    from joserfc.jwk import RSAKey

TOKEN_PATH: Final = "/oauth2/token"  # noqa: S105 - a path, not a secret
KEYS_PATH: Final = "/jwks.json"
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
ISSUER_PATHS: Final = (TOKEN_PATH, KEYS_PATH, DISCOVERY_PATH)
EXPIRES_S: Final = 3600
EXPIRES_MAX_S: Final = 86_400
AUDIENCE: Final = "quorumlog"
_BODY_MAX_BYTES: Final = 16 * 1024
_CHECKS_MAX: Final = 2  # at once: each takes some ms of CPU
_KEY_BITS: Final = 2048
_FIELDS_MAX: Final = 20
_NOBODY: Final = ScramCredential(
    iterations=ITERATIONS_MIN, salt=b"-", stored_key=b"", server_key=b""
)
_HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}

Credentials = Mapping[tuple[str, int], ScramCredential]


def public_keys_path(key_file: Path) -> Path:
    """Return the file with the public key beside a key file: for a `file:` URL of brokers."""
    return key_file.with_name(f"{key_file.name}.jwks.json")


class _Refused(Exception):
    """An error of RFC 6749, section 5.2."""

    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(description)
        self.error: Final = error
        self.status: Final = status


class TokenIssuer:
    """Issues tokens to the users in `credentials`. `issuer`: the claim `iss` of all tokens."""

    def __init__(self, key_file: Path, issuer: str, credentials: Callable[[], Credentials]) -> None:
        """Raise StartFailed without the packages of signed tokens."""
        missing = why_no_packages("an issuer needs", ("joserfc", "cryptography"), "security")
        if missing:
            raise StartFailed(f"control.oauth.key.file: {missing}")
        self._file: Final = key_file
        self._issuer: Final = issuer
        self._credentials: Final = credentials
        self._key: RSAKey | None = None
        self._loads: Final = asyncio.Lock()
        self._checks: Final = asyncio.Semaphore(_CHECKS_MAX)

    def add_routes(self, app: web.Application) -> None:
        """Add the routes; they need no secret of the nodes."""
        app.add_routes(
            [
                web.post(TOKEN_PATH, self._token),
                web.get(KEYS_PATH, self._keys),
                web.get(DISCOVERY_PATH, self._discovery),
            ]
        )

    async def load(self) -> "RSAKey":
        """Return the key; a cluster's first node makes it. Raises StartFailed."""
        async with self._loads:
            if self._key is None:
                try:
                    self._key = await asyncio.to_thread(read_or_make_key, self._file)
                except (OSError, ValueError) as error:
                    raise StartFailed(f"control.oauth.key.file={self._file}: {error}") from error
        return self._key

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response(_public(await self.load()))

    async def _discovery(self, request: web.Request) -> web.Response:
        here = f"{request.scheme}://{request.host}"
        return web.json_response(
            {
                "issuer": self._issuer,
                "token_endpoint": here + TOKEN_PATH,
                "jwks_uri": here + KEYS_PATH,
                "grant_types_supported": ["client_credentials"],
                "token_endpoint_auth_methods_supported": [
                    "client_secret_basic",
                    "client_secret_post",
                ],
                "response_types_supported": ["token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    async def _token(self, request: web.Request) -> web.Response:
        try:
            answer = await self._issue(request)
        except _Refused as refused:
            headers = {"Cache-Control": "no-store"}
            if refused.status == web.HTTPUnauthorized.status_code:
                headers["WWW-Authenticate"] = "Basic"
            body = {"error": refused.error, "error_description": str(refused)}
            return web.json_response(body, status=refused.status, headers=headers)
        return web.json_response(answer, headers={"Cache-Control": "no-store"})

    async def _issue(self, request: web.Request) -> dict[str, Any]:
        form = await _form(request)
        if form.get("grant_type") != "client_credentials":
            raise _Refused("unsupported_grant_type", "grant_type must be client_credentials")
        expires_s = _expiry_s(form.get("expires_in", str(EXPIRES_S)))
        user, password = _client(request.headers.get("Authorization", ""), form)
        async with self._checks:
            is_valid = await asyncio.to_thread(_is_valid, self._credentials(), user, password)
        if not is_valid:
            raise _Refused("invalid_client", "the client's id or secret is wrong", 401)
        now_s = wall_clock_ms() / 1000
        claims = {
            "iss": self._issuer,
            "sub": user,
            "aud": form.get("audience") or AUDIENCE,
            "iat": min(now_s, now_s + expires_s - 1),
            "exp": now_s + expires_s,
            "jti": random_bytes(16).hex(),
        }
        if form.get("scope"):
            claims["scope"] = form["scope"]
        from joserfc import jwt  # loaded with the key

        key = await self.load()
        token = jwt.encode({"alg": "RS256", "typ": "JWT", "kid": key.kid}, claims, key)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": int(expires_s)}
        return answer | ({"scope": claims["scope"]} if "scope" in claims else {})


async def _form(request: web.Request) -> dict[str, str]:
    """Return the fields of a body of bounded size."""
    body = b""
    while part := await request.content.readany():
        body += part
        if len(body) > _BODY_MAX_BYTES:
            raise _Refused("invalid_request", f"a body of more than {_BODY_MAX_BYTES} bytes")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError as error:
        raise _Refused("invalid_request", "the body is no form") from error


def _expiry_s(text: str) -> float:
    try:
        expires_s = float(text)
    except ValueError:
        expires_s = EXPIRES_MAX_S + 1
    if not -EXPIRES_MAX_S <= expires_s <= EXPIRES_MAX_S:
        raise _Refused("invalid_request", f"expires_in: at most {EXPIRES_MAX_S} seconds")
    return expires_s


def _client(authorization: str, form: Mapping[str, str]) -> tuple[str, str]:
    """Return the id and the secret of a client, from the header or the form."""
    scheme, _, encoded = authorization.partition(" ")
    if not scheme:
        return form.get("client_id", ""), form.get("client_secret", "")
    try:
        user, _, password = b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        scheme = user = password = ""
    if scheme.lower() != "basic":
        raise _Refused("invalid_client", "the header Authorization must be Basic", 401)
    # RFC 6749 encodes both as in a form; most clients leave them as they are.
    return unquote_plus(user), unquote_plus(password)


def _is_valid(credentials: Credentials, user: str, password: str) -> bool:
    """Return whether it is the password of a user: in another thread, as it takes some ms."""
    is_valid = False
    for mechanism, name in _HASHES.items():
        stored = credentials.get((user, mechanism), _NOBODY)
        salted = salted_password(name, password.encode(), stored.salt, stored.iterations)
        shown = credential_of(
            mechanism, iterations=stored.iterations, salt=stored.salt, salted_password=salted
        )
        is_valid |= hmac.compare_digest(shown.stored_key, stored.stored_key)
    return is_valid


def _public(key: "RSAKey") -> dict[str, Any]:
    public = key.as_dict(private=False, kid=key.kid, use="sig", alg="RS256")
    return {"keys": [public]}


def read_or_make_key(path: Path) -> "RSAKey":
    """Return the key in a file, which the first of all nodes makes. Raises OSError, ValueError."""
    from joserfc.jwk import RSAKey

    if not path.exists():
        made = RSAKey.generate_key(_KEY_BITS).as_pem(private=True)
        _write_once(path, made, 0o600)
    key = RSAKey.import_key(path.read_bytes())
    if not key.is_private:
        raise ValueError("it has no private key")
    key.ensure_kid()
    _write_once(public_keys_path(path), json.dumps(_public(key)).encode(), 0o644)
    return key


def _write_once(path: Path, content: bytes, mode: int) -> None:
    """Write a file, whole, unless another node has written it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{random_bytes(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if not path.exists():
            os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
