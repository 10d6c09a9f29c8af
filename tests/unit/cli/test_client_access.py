"""TLS and SASL of commands: properties files of other clients, options, passwords."""

import threading
from base64 import b64decode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cli import connect
from quorumlog.cli.client_properties import client_options
from quorumlog.cli.connect import Access, resolve
from quorumlog.cli.output import EXIT_USAGE
from quorumlog.cli.security_options import without_secrets
from quorumlog.client.security import SecuritySettings
from quorumlog.doctor.client_settings import read_properties
from tests.support.cli.in_process import CommandLine

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
BEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SECRET = "hunter2"
PEM = "-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----"


@pytest.fixture(autouse=True)
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_refuses", lambda *_: False)
    monkeypatch.delenv("QUORUMLOG_PASSWORD", raising=False)


JAVA = rf"""
bootstrap.servers=a:1,b:2
security.protocol = sasl_ssl
sasl.mechanism: SCRAM-SHA-512
sasl.jaas.config={SCRAM_MODULE} required \
  username="alice" password="p=\\\"x;";
ssl.truststore.type=PEM
ssl.truststore.certificates={PEM}
ssl.protocol=TLSv1.3
ssl.endpoint.identification.algorithm=
acks=all
"""
LIBRDKAFKA = """
metadata.broker.list=a:1
security.protocol=sasl_plaintext
sasl.mechanisms=PLAIN
sasl.username=alice
sasl.password=secret
"""


def test_a_file_of_java(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(JAVA)
    found = resolve(None, access=Access(command_config=file))
    assert found == {
        "bootstrap_servers": "a:1,b:2",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "alice",
        "sasl_password": 'p="x;',
        "ssl_ca": PEM.replace("\\n", "\n"),
        "ssl_check_hostname": False,
    }
    assert resolve("c:3", access=Access(command_config=file))["bootstrap_servers"] == "c:3"


def test_a_file_of_librdkafka(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(LIBRDKAFKA)
    assert resolve(None, access=Access(command_config=file)) == {
        "bootstrap_servers": "a:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "alice",
        "sasl_password": "secret",
    }


@pytest.mark.parametrize(
    "properties",
    [
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{BEARER_MODULE} required unsecuredLoginStringClaim_sub="alice";',
            "sasl.login.callback.handler.class": "org.x.OAuthBearerUnsecuredLoginCallbackHandler",
        },
        {
            "sasl.mechanisms": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": "principal=alice scope=x",
        },
    ],
)
def test_tokens_without_a_signature(properties: dict[str, str]) -> None:
    found = client_options({"security.protocol": "SASL_PLAINTEXT", **properties})
    token: Callable[[], str] = found["sasl_token"]
    assert token().startswith("eyJhbGciOiAibm9uZSJ9.")
    assert token().endswith(".")
    assert SecuritySettings(**found).sasl_mechanism == "OAUTHBEARER"


ISSUED = [
    {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{BEARER_MODULE} required clientId="al ice" clientSecret="s:x";',
        "sasl.login.callback.handler.class": "org.x.OAuthBearerLoginCallbackHandler",
    },
    {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "al ice",
        "sasl.oauthbearer.client.secret": "s:x",
    },
]


class Issuer(BaseHTTPRequestHandler):
    """Gives a token to one client."""

    answer = b'{"access_token": "a.b.c"}'

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"]))
        login = b64decode(self.headers["Authorization"].removeprefix("Basic "))
        is_right = (form, login) == (b"grant_type=client_credentials", b"al+ice:s%3Ax")
        self.send_response(200 if is_right else 401)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize("properties", ISSUED)
def test_tokens_of_an_issuer(properties: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), Issuer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/oauth2/token"
        found = client_options({**properties, "sasl.oauthbearer.token.endpoint.url": url})
        token: Callable[[], str] = found["sasl_token"]
        assert token() == "a.b.c"
        monkeypatch.setattr(Issuer, "answer", b"[]")
        with pytest.raises(ValueError, match="the answer has no access_token"):
            token()
        server.shutdown()


def test_stores_are_pem_files(tmp_path: Path) -> None:
    pem, jks = tmp_path / "all.pem", tmp_path / "all.jks"
    pem.write_text("-----BEGIN CERTIFICATE-----\n")
    jks.write_bytes(b"\xfe\xed\xfe\xed")
    stores = {"ssl.truststore.location": str(pem), "ssl.keystore.location": str(pem)}
    expected = {"ssl_ca": str(pem), "ssl_certificate": str(pem)}
    assert client_options(stores) == expected
    assert client_options({**stores, "ssl.keystore.type": "pem"}) == expected
    for wrong in ({"ssl.truststore.type": "PKCS12"}, {"ssl.truststore.location": str(jks)}):
        with pytest.raises(ValueError, match=r"set ssl.truststore.type=PEM, and convert the file"):
            client_options({**stores, **wrong})


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites: not supported"),
        ({"sasl.kerberos.service.name": "x"}, "sasl.kerberos.service.name: not supported"),
        ({"enable.ssl.certificate.verification": "false"}, "not supported"),
        ({"sasl.mechanism": "GSSAPI"}, "GSSAPI: the mechanisms are PLAIN, SCRAM-SHA-256"),
        ({"sasl.jaas.config": "x"}, "GSSAPI: the mechanisms are"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": SECRET}, "write it as MODULE required"),
        (
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": f"{SCRAM_MODULE} required;"},
            "it has no username and password for SCRAM-SHA-256",
        ),
        (
            {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{BEARER_MODULE} required;"},
            "set sasl.oauthbearer.token.endpoint.url with the id and the secret",
        ),
        ({"enable.sasl.oauthbearer.unsecure.jwt": "true"}, "set sasl.oauthbearer.config, too"),
        ({"sasl.oauthbearer.client.id": "alice"}, "set sasl.oauthbearer.token.endpoint.url"),
        (
            {
                "sasl.oauthbearer.client.id": "alice",
                "sasl.oauthbearer.client.secret": SECRET,
                "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd",
            },
            "write it as https://",
        ),
        ({"sasl.oauthbearer.config": "scope=x"}, "it has no principal=NAME"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "https, or empty"),
    ],
)
def test_protection_without_a_counterpart_is_refused(properties: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as refusal:
        client_options(properties)
    assert why in str(refusal.value)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        (Access(), {}),
        (Access(tls_ca=Path("ca.pem")), {"security_protocol": "SSL", "ssl_ca": Path("ca.pem")}),
        (
            Access(sasl="scram-sha-256", login="alice:p:q"),
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_username": "alice",
                "sasl_password": "p:q",
            },
        ),
        (
            Access(sasl="plain", login="alice:p", tls_ca=Path("ca.pem")),
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_username": "alice",
                "sasl_password": "p",
                "ssl_ca": Path("ca.pem"),
            },
        ),
    ],
)
def test_options_of_a_command(access: Access, expected: dict[str, Any]) -> None:
    assert resolve("a:1", access=access) == {**expected, "bootstrap_servers": "a:1"}


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(LIBRDKAFKA)
    found = Access(command_config=file, login="bob:x", sasl="scram-sha-512").options()
    assert found["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (found["sasl_username"], found["sasl_password"]) == ("bob", "x")


def test_passwords_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("of the file\n")
    from_file = Access(sasl="plain", login=f"alice:@{file}").options()
    monkeypatch.setenv("QUORUMLOG_PASSWORD", "of the environment")
    from_environment = Access(sasl="plain", login="alice").options()
    assert from_file["sasl_password"] == "of the file"
    assert from_environment["sasl_password"] == "of the environment"


def test_a_user_of_oauthbearer_needs_no_password() -> None:
    found = Access(sasl="oauthbearer", login="alice").options()
    assert found["sasl_token"]().count(".") == 2
    assert Access(sasl="oauthbearer", login="alice:t").options()["sasl_token"] == "t"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--user", "alice:secret"], "--user: name its mechanism by --sasl"),
        (["--sasl", "scram"], "scram: the mechanisms are PLAIN"),
        (["--sasl", "plain"], "needs sasl_username and sasl_password"),
        (["--sasl", "plain", "--user", "alice"], "give its password in QUORUMLOG_PASSWORD"),
        (["--sasl", "plain", "--user", "alice:@{tmp}/missing"], "No such file"),
        (["--command-config", "{tmp}/missing"], "No such file"),
    ],
)
def test_options_that_cannot_hold_end_the_command(
    words: list[str], why: str, tmp_path: Path, command: CommandLine
) -> None:
    given = [word.replace("{tmp}", str(tmp_path)) for word in words]
    said = command("topics", "list", "--bootstrap", "a:1", *given, status=EXIT_USAGE)
    assert why in said
    assert "secret" not in said


def test_every_command_with_bootstrap_takes_a_login(command: CommandLine) -> None:
    for words in (["topics", "list"], ["produce"], ["consume"], ["dump"], ["load"], ["elect"]):
        said = command(*words, "--help")
        for option in ("--command-config", "--tls-ca", "--sasl", "--user"):
            assert option in said


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("! c\n# c\na b\n c:d\ne\n f = g=h \ni=\\u0041\\n\\\\n\\x\n")
    assert read_properties(file) == {"a": "b", "c": "d", "e": "", "f": "g=h", "i": "A\n\\nx"}


def test_a_recorded_command_has_no_password() -> None:
    jaas = "listener.name.a.plain.sasl.jaas.config=org.x required password=hunter2;"
    words = ["--user", "a=hunter2", "--user=b:hunter2", "--config", jaas, f"--config={jaas}"]
    words += ["--config", "ssl.key.password=hunter2", "--user", "c=@file", "--user", "d"]
    words += ["--config", "log.segment.bytes=7", "--fault", "a=b", "x=y"]
    shown = without_secrets(words)
    assert "hunter2" not in " ".join(shown)
    assert shown[:3] == ("--user", "a=[hidden]", "--user=b:[hidden]")
    assert list(shown[8:]) == words[8:]
