"""Tokens of issuers: they are kept, and each issuer is tried."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest

from quorumlog.cluster.certificates import make_ca
from quorumlog.cluster.issued_tokens import IssuedToken, IssuedTokens, TokenRequest

SECRET = "hunter2"
REQUEST = TokenRequest(client_id="alice", secret=SECRET)


class Issuers:
    """Issuers `a` and `b`, of which some are down; each token has a number."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.requested: list[str] = []
        self.now_s = 0.0

    def send(self, url: str) -> IssuedToken:
        self.requested.append(url)
        if url in self.down:
            raise OSError(f"{url} is down")
        return IssuedToken(f"{url}{len(self.requested)}", 100.0)


def test_a_token_is_kept_for_most_of_its_lifetime() -> None:
    issuers = Issuers()
    tokens = IssuedTokens(["a", "b"], issuers.send, lambda: issuers.now_s)
    assert [tokens(), tokens()] == ["a1", "a1"]
    issuers.now_s = 79.9
    assert tokens() == "a1"
    issuers.now_s = 80.0
    assert tokens() == "a2"
    assert issuers.requested == ["a", "a"]


def test_every_issuer_is_tried_and_the_last_good_one_first() -> None:
    issuers = Issuers()
    issuers.down = {"a"}
    tokens = IssuedTokens(["a", "b"], issuers.send, lambda: issuers.now_s)
    assert tokens() == "b2"
    issuers.now_s = 100.0
    assert tokens() == "b3"
    issuers.now_s, issuers.down = 200.0, {"a", "b"}
    with pytest.raises(OSError, match="a is down"):
        tokens()
    issuers.down = {"b"}
    assert tokens() == "a7"
    assert issuers.requested == ["a", "b", "b", "b", "a", "b", "a"]


def test_a_valid_token_outlasts_all_issuers() -> None:
    issuers = Issuers()
    tokens = IssuedTokens(["a", "b"], issuers.send, lambda: issuers.now_s)
    assert tokens() == "a1"
    issuers.down = {"a", "b"}
    for issuers.now_s in (80.0, 85.0, 89.9):  # one attempt in ten seconds
        assert tokens() == "a1"
    assert issuers.requested == ["a", "a", "b"]
    issuers.now_s = 100.0
    with pytest.raises(OSError, match="b is down"):
        tokens()
    issuers.down = {"b"}
    assert tokens() == "a6"


class Issuer(BaseHTTPRequestHandler):
    """Gives everybody a token, of the lifetime in the query; at /moved, it names another path."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/broken":
            self.wfile.write(b"SSH-2.0\r\n")
            return
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        if self.path != "/moved":
            lifetime = unquote(urlsplit(self.path).query) or "7"
            self.wfile.write(f'{{"access_token": "a.b.c", "expires_in": {lifetime}}}'.encode())

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"access_token": str(self.headers["Authorization"])}).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Issuer) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}/oauth2/token"
        server.shutdown()


def test_an_issuer_with_https_has_a_certificate_of_the_given_ca(tmp_path: Path) -> None:
    authority, other = make_ca(tmp_path / "one"), make_ca(tmp_path / "other")
    issued = authority.issue_node(1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    with serving(context) as url:
        good = TokenRequest(client_id="alice", secret=SECRET, ca=authority.certificate)
        assert good.send(url) == IssuedToken("a.b.c", 7.0)
        for wrong in (
            REQUEST,  # the system's CAs
            TokenRequest(client_id="alice", secret=SECRET, ca=other.certificate.read_text()),
        ):
            with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED") as refused:
                wrong.send(url)
            assert SECRET not in repr(refused.value)


def test_a_request_shows_no_secret_and_goes_to_no_file() -> None:
    assert SECRET not in repr(REQUEST)
    with pytest.raises(ValueError, match="file:///etc/passwd: the URL of an issuer"):
        REQUEST.send("file:///etc/passwd")


def test_odd_answers_of_an_issuer_get_no_secret_and_no_endless_lifetime() -> None:
    with serving() as url:
        for odd in ('"nan"', "Infinity", "null", "[]"):
            assert REQUEST.send(f"{url}?{quote(odd)}").expires_s == 60.0
        moved = REQUEST.send(url.replace("/oauth2/token", "/moved"))
        assert moved.text == "None"  # the header of the redirected request
        with pytest.raises(OSError, match="no answer in HTTP") as refused:
            REQUEST.send(url.replace("/oauth2/token", "/broken"))
        assert SECRET not in str(refused.value)


def test_a_request_to_a_node_passes_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a closed port
    with serving() as url:
        with pytest.raises(OSError, match="refused"):
            REQUEST.send(url)
        assert replace(REQUEST, may_use_proxy=False).send(url).text == "a.b.c"
