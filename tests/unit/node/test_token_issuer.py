"""The issuer of tokens and the keys that brokers check them by, over HTTP and from files."""

import asyncio
import hashlib
import hmac
import json
import logging
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from quorumlog.broker.authentication.core.bearer import BadToken, checked
from quorumlog.broker.authentication.io.token_keys import KEYS_MAX_BYTES, TokenKeys
from quorumlog.clock import wall_clock_ms
from quorumlog.metadata_quorum.image.scram import ScramMechanism, credential_of
from quorumlog.node.listeners import StartFailed
from quorumlog.node.token_issuer import TokenIssuer, public_keys_path
from quorumlog.settings.sasl import TokenSettings
from quorumlog.tasks import Tasks

ISSUER = "urn:quorumlog:c"
SALT = b"0123456789abcdef"
SALTED = hashlib.pbkdf2_hmac("sha512", b"s:cret", SALT, 4096)
CREDENTIALS = {
    ("alice", int(ScramMechanism.SHA_512)): credential_of(
        ScramMechanism.SHA_512, iterations=4096, salt=SALT, salted_password=SALTED
    )
}
GRANT = {"grant_type": "client_credentials"}
CLAIMS = {"sub": "alice", "exp": 5_000_000_000, "aud": "a", "iss": "i"}


@asynccontextmanager
async def serving(*issuers: TokenIssuer, **bodies: bytes) -> AsyncIterator[str]:
    """Yield the URL of a server of an issuer, and of these bodies."""
    app = web.Application()
    for issuer in issuers:
        issuer.add_routes(app)
    for name, body in bodies.items():

        async def get(_: web.Request, body: bytes = body) -> web.Response:
            return web.Response(body=body)

        app.router.add_get(f"/{name}", get)

    async def moved(_: web.Request) -> web.Response:
        raise web.HTTPFound("/keys")

    app.router.add_get("/moved", moved)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def keys_at(url: str, **options: Any) -> AsyncIterator[TokenKeys]:
    failures: list[BaseException] = []
    tasks = Tasks(failures.append)
    keys = TokenKeys(TokenSettings(jwks_url=url, **options), tasks)
    await keys.start()
    try:
        yield keys
    finally:
        await tasks.stop()
    assert failures == []


def why_bad(keys: TokenKeys, token: str) -> str:
    with pytest.raises(BadToken) as refused:
        keys.claims(token)
    return str(refused.value)


async def post(url: str, form: dict[str, str], **options: Any) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/oauth2/token", data=form, **options) as response,
    ):
        return response.status, await response.json()


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"alice:{password}".encode()).decode()}


ALICE = basic("s:cret")


async def test_a_user_gets_a_token_that_the_brokers_accept(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "key.pem", ISSUER, lambda: CREDENTIALS)
    async with serving(issuer) as url, keys_at(f"{url}/jwks.json") as keys:
        form = {**GRANT, "expires_in": "120", "scope": "a b", "audience": "me"}
        status, answer = await post(url, form, headers=ALICE)
        assert (status, answer["token_type"], answer["expires_in"]) == (200, "Bearer", 120)
        settings = TokenSettings(
            jwks_url=url, issuer=ISSUER, audiences=("me",), required_scopes=("a",)
        )
        claims = keys.claims(answer["access_token"])
        accepted = checked(claims, settings, wall_clock_ms())
        assert accepted.user == "alice"
        assert accepted.expires_ms is not None
        assert 100_000 < accepted.expires_ms - wall_clock_ms() <= 120_000
        other = TokenSettings(jwks_url=url, issuer="other")
        with pytest.raises(BadToken, match="the issuer is"):
            checked(claims, other, wall_clock_ms())
        with pytest.raises(BadToken, match="the audience is"):
            checked(claims, TokenSettings(jwks_url=url, audiences=("x",)), wall_clock_ms())
        in_form = {**GRANT, "client_id": "alice", "client_secret": "s:cret", "expires_in": "-60"}
        _, expired = await post(url, in_form)
        with pytest.raises(BadToken, match="expired"):
            checked(keys.claims(expired["access_token"]), settings, wall_clock_ms())


async def test_a_node_without_tls_checks_passwords_by_openssl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `hashlib`, without OpenSSL, has a slow PBKDF2, and none from Python 3.12 on."""
    monkeypatch.delattr(hashlib, "pbkdf2_hmac")
    async with serving(TokenIssuer(tmp_path / "key.pem", ISSUER, lambda: CREDENTIALS)) as url:
        status, answer = await post(url, GRANT, headers=ALICE)
    assert (status, answer["token_type"]) == (200, "Bearer")


@pytest.mark.parametrize(
    ("form", "password", "error"),
    [
        (GRANT, "wrong", "invalid_client"),
        ({**GRANT, "client_id": "alice"}, "", "invalid_client"),
        ({**GRANT, "client_id": "bob", "client_secret": "s:cret"}, "", "invalid_client"),
        ({"grant_type": "password"}, "s:cret", "unsupported_grant_type"),
        ({}, "s:cret", "unsupported_grant_type"),
        ({**GRANT, "expires_in": "x"}, "s:cret", "invalid_request"),
        ({**GRANT, "expires_in": "nan"}, "s:cret", "invalid_request"),
        ({**GRANT, "x": "y" * 20_000}, "s:cret", "invalid_request"),
    ],
)
async def test_other_requests_are_refused(
    tmp_path: Path, form: dict[str, str], password: str, error: str
) -> None:
    issuer = TokenIssuer(tmp_path / "key.pem", ISSUER, lambda: CREDENTIALS)
    async with serving(issuer) as url:
        status, answer = await post(url, form, headers=basic(password) if password else {})
        assert status == (401 if error == "invalid_client" else 400)
        assert answer["error"] == error


async def test_all_nodes_have_the_key_that_the_first_made(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    issuers = [TokenIssuer(path, ISSUER, lambda: CREDENTIALS) for _ in range(3)]
    made = await asyncio.gather(*(issuer.load() for issuer in issuers))
    assert len({key.kid for key in made}) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert {one.name for one in tmp_path.iterdir()} == {"key.pem", "key.pem.jwks.json"}
    public = json.loads(public_keys_path(path).read_text())
    assert "d" not in public["keys"][0]
    async with serving(issuers[0]) as url, keys_at(public_keys_path(path).as_uri()) as keys:
        _, answer = await post(url, GRANT, headers=ALICE)
        assert keys.claims(answer["access_token"])["sub"] == "alice"
        async with aiohttp.ClientSession() as session:
            found = await (await session.get(f"{url}/.well-known/openid-configuration")).json()
        assert found["token_endpoint"] == f"{url}/oauth2/token"
        assert found["issuer"] == ISSUER


async def test_a_file_that_is_no_key_stops_the_node(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("no key")
    with pytest.raises(StartFailed, match=r"control.oauth.key.file=.*key.pem: "):
        await TokenIssuer(path, ISSUER, lambda: CREDENTIALS).load()


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False, kid=key.kid) for key in keys]}).encode()


def new_key(kid: str = "one") -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid})


def signed(key: Any, algorithm: str = "RS256", **header: str) -> str:
    return jwt.encode({"alg": algorithm, **header}, CLAIMS, key, algorithms=[algorithm])


def hmac_signed(secret: bytes) -> str:
    parts = [{"alg": "HS256", "kid": "one"}, CLAIMS]
    text = ".".join(urlsafe_b64encode(json.dumps(one).encode()).decode() for one in parts)
    text = text.replace("=", "")
    signature = urlsafe_b64encode(hmac.digest(secret, text.encode(), "sha256")).decode()
    return f"{text}.{signature.rstrip('=')}"


async def test_only_signatures_of_the_keys_by_listed_algorithms_are_accepted(
    tmp_path: Path,
) -> None:
    key, stranger = new_key(), new_key()
    curve = ECKey.generate_key("P-256", {"kid": "curve"})
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(key, curve))
    async with keys_at(path.as_uri()) as keys:
        assert keys.claims(signed(key, kid="one"))["sub"] == "alice"
        assert keys.claims(signed(key, "PS512", kid="one"))["sub"] == "alice"
        assert keys.claims(signed(curve, "ES256", kid="curve"))["sub"] == "alice"
        assert "BadSignature" in why_bad(keys, signed(stranger, kid="one"))
        assert "no key has the id" in why_bad(keys, signed(key, kid="two"))
        assert why_bad(keys, signed(curve, "ES256", kid="one"))
        # The public key as the secret of an HMAC: the oldest attack there is.
        by_hmac = hmac_signed(key.as_pem(private=False))
        assert "cannot be checked" in why_bad(keys, by_hmac)
        head, claims, signature = signed(key, kid="one").split(".")
        assert why_bad(keys, f"{head}.{claims}.")
        none = "eyJhbGciOiJub25lIn0"
        assert why_bad(keys, f"{none}.{claims}.{signature}")
        assert why_bad(keys, f"{none}.{claims}.")
        assert "no signed compact" in why_bad(keys, "a.b.c.d.e")
        assert why_bad(keys, "é.b.c")


async def test_a_key_set_with_one_key_needs_no_id(tmp_path: Path) -> None:
    key = new_key()
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(key))
    async with keys_at(path.as_uri()) as keys:
        assert keys.claims(signed(key))["sub"] == "alice"


async def test_new_keys_are_read_when_a_token_names_one(tmp_path: Path) -> None:
    path, one, two = tmp_path / "keys.json", new_key("one"), new_key("two")
    path.write_bytes(key_set(one))
    async with keys_at(path.as_uri(), retry_backoff_max_ms=1) as keys:
        path.write_bytes(key_set(two))
        async with asyncio.timeout(20):
            while True:
                try:
                    keys.claims(signed(two, kid="two"))
                except BadToken:
                    await asyncio.sleep(0.01)
                else:
                    break


async def test_keys_that_cannot_be_read_are_read_again_and_the_last_ones_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path, key = tmp_path / "keys.json", new_key()
    async with keys_at(path.as_uri(), retry_backoff_ms=1, refresh_ms=5) as keys:
        assert "no keys could be read" in why_bad(keys, signed(key))
        assert "No such file" in caplog.text
        path.write_bytes(key_set(key))
        async with asyncio.timeout(20):
            while keys._keys is None:
                await asyncio.sleep(0.01)
        path.write_text("no keys")
        caplog.clear()
        async with asyncio.timeout(20):
            while "it is no JWKS" not in caplog.text:
                await asyncio.sleep(0.01)
        assert keys.claims(signed(key))["sub"] == "alice"


async def test_no_redirect_is_followed_and_no_size_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bodies = {
        "keys": key_set(new_key()),
        "large": b"x" * (KEYS_MAX_BYTES + 1),
        "list": b'{"keys":3}',
    }
    reasons = {
        "moved": "the status is 302",
        "large": "more than 1048576 bytes",
        "list": "it is no JWKS",
        "missing": "the status is 404",
    }
    async with serving(**bodies) as url:
        for name, reason in reasons.items():
            async with keys_at(f"{url}/{name}") as keys:
                assert keys._keys is None
            assert reason in caplog.text
