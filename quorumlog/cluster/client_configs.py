"""The settings by which clients of several libraries reach a local cluster, also a secured one.

Each style has the names and values of its library. OAUTHBEARER has the unsecured tokens of tests,
whose subject is the user. Raises InvalidArgument for an unknown style or user.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quorumlog.cluster import secured_properties, security
from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.security import OAUTHBEARER, PLAIN, SCRAM

if TYPE_CHECKING:
    from quorumlog.cluster.layout import ClusterSpec

_MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM, "org.apache.kafka.common.security.scram.ScramLoginModule"),
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The settings with which one user reaches a cluster. `user` None: an anonymous client.

    `ca`, `certificate`, `key`, `keystore`: files in PEM; the last has the key and the certificate.
    `token_urls`: of equal issuers that give the user tokens for its password, with the cluster's
    CA if it has TLS; (): of OAUTHBEARER, tokens have no signature.
    """

    bootstrap: str
    protocol: str
    mechanism: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    keystore: Path | None = None
    token_urls: tuple[str, ...] = ()

    @property
    def token_url(self) -> str | None:
        """The URL of the first issuer, for libraries that take one."""
        return next(iter(self.token_urls), None)

    @property
    def has_login(self) -> bool:
        """Whether the user authenticates by name and password."""
        return self.mechanism is not None


def access(directory: Path, spec: "ClusterSpec", user: str | None) -> Access:
    """Return the way of a user to the listeners for clients.

    None: the first super user with a password or certificate, else the first user, if there is one.
    Raises InvalidArgument for an unknown user, ClusterError if its password is unknown.
    """
    protection = spec.security
    if protection is None:
        _require_no_user(user)
        return Access(bootstrap=spec.bootstrap, protocol="PLAINTEXT")
    known = security.passwords(directory).users
    name = user or security.default_user(directory, protection)
    if user is not None and user not in known:
        there_are = f"there are {', '.join(known)}" if known else "it has none"
        add = f"`quorumlog up --dir {directory} --user {user}` adds it"
        raise InvalidArgument(f"the cluster in {directory} has no user {user}: {there_are}; {add}")
    if protection.mechanism is not None and name is None:
        raise ClusterError(
            f"no password of a user is recorded in {directory}: "
            f"quorumlog up --dir {directory} --user NAME=PASSWORD records one"
        )
    place, has_certificate = security.security_directory(directory), False
    if protection.has_certificates and name is not None:
        has_certificate = True
    return Access(
        bootstrap=spec.bootstrap,
        protocol=protection.protocol,
        mechanism=protection.mechanism,
        user=name,
        password=None if name is None else known[name],
        ca=security.ca_file(directory) if protection.tls else None,
        certificate=place / f"{name}.pem" if has_certificate else None,
        key=place / f"{name}.key" if has_certificate else None,
        keystore=security.keystore(place, str(name)) if has_certificate else None,
        token_urls=_token_urls(spec) if protection.has_issuer else (),
    )


def _token_urls(spec: "ClusterSpec") -> tuple[str, ...]:
    """Return the issuers: the brokers, which have the credentials."""
    scheme = "https" if spec.security is not None and spec.security.tls else "http"
    brokers = [node for node in spec.nodes if node.is_broker]
    return tuple(f"{scheme}://{spec.control_address(node)}/oauth2/token" for node in brokers)


def _require_no_user(user: str | None) -> None:
    if user is not None:
        raise InvalidArgument(f"--user {user}: the cluster has no users; all clients are anonymous")


def own_access(directory: Path, spec: "ClusterSpec") -> Access:
    """Return the way of the brokers to each other: of a super user."""
    protection = spec.security
    if protection is None:
        return Access(bootstrap=spec.bootstrap, protocol="PLAINTEXT")
    return Access(
        bootstrap=spec.internal_bootstrap,
        protocol=protection.internal_protocol,
        mechanism=PLAIN,
        user=security.BROKER,
        password=security.passwords(directory).broker,
        ca=security.ca_file(directory) if protection.tls else None,
    )


def client_config(way: Access, style: str) -> dict[str, Any]:
    """Return the settings of a client, in the names of a library: see STYLES.

    Raises InvalidArgument for an unknown style.
    """
    found = STYLES.get(style)
    if found is None:
        raise InvalidArgument(f"no style {style}: there are {', '.join(STYLES)}")
    return found(way)


# --- styles ---


def _of_quorumlog(way: Access) -> dict[str, Any]:
    """Return arguments of `quorumlog.client`."""
    settings: dict[str, Any] = {"bootstrap_servers": way.bootstrap}
    if way.protocol != "PLAINTEXT":
        settings["security_protocol"] = way.protocol
    if way.mechanism == OAUTHBEARER:
        settings |= {"sasl_mechanism": OAUTHBEARER, "sasl_token": _token_of(way)}
    elif way.has_login:
        settings |= {
            "sasl_mechanism": way.mechanism,
            "sasl_username": way.user,
            "sasl_password": way.password,
        }
    files = {"ssl_ca": way.ca, "ssl_certificate": way.certificate, "ssl_key": way.key}
    return settings | _texts(files)


def _of_confluent(way: Access) -> dict[str, Any]:
    """Return the configuration of confluent-kafka, and of librdkafka in any language."""
    settings: dict[str, Any] = {"bootstrap.servers": way.bootstrap}
    if way.protocol != "PLAINTEXT":
        settings["security.protocol"] = way.protocol
    if way.has_login:
        settings["sasl.mechanism"] = way.mechanism
    if way.token_url is not None:
        settings |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": way.user,
            "sasl.oauthbearer.client.secret": way.password,
            "sasl.oauthbearer.token.endpoint.url": way.token_url,
            **_texts({"https.ca.location": way.ca}),
        }
    elif way.mechanism == OAUTHBEARER:
        settings["enable.sasl.oauthbearer.unsecure.jwt"] = True
        settings["sasl.oauthbearer.config"] = f"principal={way.user}"
    elif way.has_login:
        settings |= {"sasl.username": way.user, "sasl.password": way.password}
    files = {
        "ssl.ca.location": way.ca,
        "ssl.certificate.location": way.certificate,
        "ssl.key.location": way.key,
    }
    return settings | _texts(files)


def _of_kafka_python(way: Access) -> dict[str, Any]:
    """Return arguments of kafka-python's clients; a provider of tokens is an object."""
    settings = _of_python(way)
    if way.mechanism == OAUTHBEARER:
        from kafka.net.sasl.oauth import AbstractTokenProvider

        token = _token_of(way)
        provider = type("TokenProvider", (AbstractTokenProvider,), {"token": lambda _: token()})
        settings["sasl_oauth_token_provider"] = provider()
    files = {"ssl_cafile": way.ca, "ssl_certfile": way.certificate, "ssl_keyfile": way.key}
    return settings | _texts(files)


def _of_aiokafka(way: Access) -> dict[str, Any]:
    """Return arguments of aiokafka's clients; `ssl_context` and a provider are objects."""
    settings = _of_python(way)
    if way.mechanism == OAUTHBEARER:
        from asyncio import to_thread

        from aiokafka.abc import AbstractTokenProvider

        token = _token_of(way)

        class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
            async def token(self) -> str:
                return await to_thread(token)  # it may call an issuer

        settings["sasl_oauth_token_provider"] = TokenProvider()
    if way.ca is not None:
        import ssl

        context = ssl.create_default_context(cafile=str(way.ca))
        if way.certificate is not None:
            context.load_cert_chain(way.certificate, way.key)
        settings["ssl_context"] = context
    return settings


def _of_python(way: Access) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": way.bootstrap}
    if way.protocol != "PLAINTEXT":
        settings["security_protocol"] = way.protocol
    if way.has_login:
        settings["sasl_mechanism"] = way.mechanism
    if way.mechanism != OAUTHBEARER and way.has_login:
        settings |= {"sasl_plain_username": way.user, "sasl_plain_password": way.password}
    return settings


def _of_java(way: Access) -> dict[str, Any]:
    """Return properties of Apache Kafka's Java clients and command line tools."""
    settings: dict[str, Any] = {"bootstrap.servers": way.bootstrap}
    if way.protocol != "PLAINTEXT":
        settings["security.protocol"] = way.protocol
    if way.mechanism is not None:
        settings["sasl.mechanism"] = way.mechanism
        settings["sasl.jaas.config"] = _jaas(way)
    if way.token_url is not None:
        settings["sasl.oauthbearer.token.endpoint.url"] = way.token_url
        settings["sasl.login.callback.handler.class"] = (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        )
    elif way.mechanism == OAUTHBEARER:
        settings["sasl.login.callback.handler.class"] = (
            "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
            "OAuthBearerUnsecuredLoginCallbackHandler"
        )
    if way.ca is not None:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(way.ca)}
    if way.keystore is not None:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(way.keystore)}
    return settings


def _jaas(way: Access) -> str:
    module = _MODULES[str(way.mechanism)]
    secret = secured_properties.quoted(way.password or "")
    if way.token_url is not None:
        return f'{module} required clientId="{way.user}" clientSecret={secret}{_jaas_ca(way)};'
    if way.mechanism == OAUTHBEARER:
        return f'{module} required unsecuredLoginStringClaim_sub="{way.user}";'
    return f'{module} required username="{way.user}" password={secret};'


def _jaas_ca(way: Access) -> str:
    """Return the CA of an issuer: Java reads it from the options of the login alone."""
    if way.ca is None:
        return ""
    place = secured_properties.quoted(str(way.ca))
    return f' ssl.truststore.type="PEM" ssl.truststore.location={place}'


def _of_kafkajs(way: Access) -> dict[str, Any]:
    """Return options of kafkajs; certificates are texts."""
    settings: dict[str, Any] = {"brokers": way.bootstrap.split(",")}
    if way.ca is not None:
        settings["ssl"] = {"ca": [way.ca.read_text()]}
    if way.certificate is not None and way.key is not None:
        settings["ssl"] |= {"cert": way.certificate.read_text(), "key": way.key.read_text()}
    if way.mechanism == OAUTHBEARER:
        raise InvalidArgument("kafkajs takes a function oauthBearerProvider for OAUTHBEARER")
    if way.mechanism is not None:
        settings["sasl"] = {
            "mechanism": way.mechanism.lower(),
            "username": way.user,
            "password": way.password,
        }
    return settings


def _of_franz_go(way: Access) -> dict[str, Any]:
    """Return the values that a program with franz-go needs: `config_text` has its code."""
    settings: dict[str, Any] = {"seeds": way.bootstrap.split(",")}
    files = {"ca": way.ca, "certificate": way.certificate, "key": way.key}
    settings |= _texts(files)
    if way.mechanism is not None:
        login = {"mechanism": way.mechanism, "user": way.user}
        settings |= login if way.password is None else {**login, "password": way.password}
    return settings


def _token_of(way: Access) -> Callable[[], str]:
    """Return a source of tokens of the user: of the issuers, or without a signature."""
    if way.token_urls:
        from quorumlog.cluster.issued_tokens import TokenRequest, tokens_at

        request = TokenRequest(  # to a node, as all other requests: without a proxy
            client_id=str(way.user), secret=str(way.password), ca=way.ca, may_use_proxy=False
        )
        return tokens_at(way.token_urls, request)
    from quorumlog.node.inter_broker import unsigned_token

    return partial(unsigned_token, str(way.user))


def _texts(files: Mapping[str, Path | None]) -> dict[str, str]:
    return {name: str(path) for name, path in files.items() if path is not None}


STYLES: Final[Mapping[str, Callable[[Access], dict[str, Any]]]] = {
    "confluent": _of_confluent,
    "aiokafka": _of_aiokafka,
    "kafka-python": _of_kafka_python,
    "java": _of_java,
    "kafkajs": _of_kafkajs,
    "franz-go": _of_franz_go,
    "quorumlog": _of_quorumlog,
}
"""The settings of each library, by its name."""


# --- text ---

_TOKENS: Final = "\n# and a source of tokens: LocalCluster.client_config() returns one"


def config_text(way: Access, style: str) -> str:
    """Return the settings as text in the language of their library, ready to be pasted.

    Raises InvalidArgument for an unknown style.
    """
    write = _WRITERS.get(style)
    return _python_text(way, style) if write is None else write(way)


def _python_text(way: Access, style: str) -> str:
    if way.mechanism == OAUTHBEARER and style != "confluent":
        return _python_lines(_of_python(way)) + _TOKENS
    return _python_lines(client_config(way, style))


def _aiokafka_text(way: Access) -> str:
    settings = _python_text(replace(way, ca=None, certificate=None, key=None), "kafka-python")
    if way.ca is None:
        return settings
    context = f"context = ssl.create_default_context(cafile={str(way.ca)!r})\n"
    if way.certificate is not None:
        context += f"context.load_cert_chain({str(way.certificate)!r}, {str(way.key)!r})\n"
    head, brace, tail = settings.rpartition("}")
    return f"import ssl\n\n{context}{head}    'ssl_context': context,\n{brace}{tail}"


def _java_text(way: Access) -> str:
    settings = client_config(way, "java")
    return "\n".join(f"{name}={_escaped(value)}" for name, value in settings.items())


def _python_lines(settings: Mapping[str, Any]) -> str:
    return "\n".join(["{", *(f"    {name!r}: {value!r}," for name, value in settings.items()), "}"])


def _escaped(value: str) -> str:
    """Return a value of a .properties file, which is read as Latin-1 (java.util.Properties)."""
    units = memoryview(value.replace("\\", "\\\\").encode("utf-16-le")).cast("H")
    return "".join(chr(unit) if unit < 0x80 else f"\\u{unit:04x}" for unit in units)


def _javascript(way: Access) -> str:
    settings = client_config(way, "kafkajs")
    lines = [f"  brokers: {json.dumps(settings['brokers'])},"]
    if way.ca is not None:
        files = {"ca": way.ca, "cert": way.certificate, "key": way.key}
        read = [
            f"{name}: fs.readFileSync({json.dumps(str(path))}, 'utf8')"
            for name, path in files.items()
            if path is not None
        ]
        lines.append(f"  ssl: {{ {', '.join(read)} }},")
    if "sasl" in settings:
        lines.append(f"  sasl: {json.dumps(settings['sasl'])},")
    return "\n".join(["{", *lines, "}"])


def _go(way: Access) -> str:
    seeds = ", ".join(json.dumps(one) for one in way.bootstrap.split(","))
    lines = [f"kgo.SeedBrokers({seeds}),"]
    before = []
    if way.ca is not None:
        before += [
            f"ca, _ := os.ReadFile({json.dumps(str(way.ca))})",
            "roots := x509.NewCertPool()",
            "roots.AppendCertsFromPEM(ca)",
            "tlsConfig := &tls.Config{RootCAs: roots}",
        ]
        lines.append("kgo.DialTLSConfig(tlsConfig),")
    if way.certificate is not None:
        files = f"{json.dumps(str(way.certificate))}, {json.dumps(str(way.key))}"
        before += [
            f"pair, _ := tls.LoadX509KeyPair({files})",
            "tlsConfig.Certificates = []tls.Certificate{pair}",
        ]
    if way.mechanism is not None:
        lines.append(f"kgo.SASL({_go_mechanism(way)}),")
    return "\n".join([*before, *lines])


def _go_mechanism(way: Access) -> str:
    user, password = json.dumps(way.user), json.dumps(way.password)
    match way.mechanism:
        case "PLAIN":
            return f"plain.Auth{{User: {user}, Pass: {password}}}.AsMechanism()"
        case "SCRAM-SHA-256" | "SCRAM-SHA-512":
            number = way.mechanism.rpartition("-")[2]
            return f"scram.Auth{{User: {user}, Pass: {password}}}.AsSha{number}Mechanism()"
        case _:
            return "oauth.Oauth(...)"


_WRITERS: Final[Mapping[str, Callable[[Access], str]]] = {
    "aiokafka": _aiokafka_text,
    "java": _java_text,
    "kafkajs": _javascript,
    "franz-go": _go,
}
