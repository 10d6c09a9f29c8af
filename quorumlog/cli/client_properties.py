"""The settings of a client of quorumlog, from a properties file of another client.

The names are those of Apache Kafka's Java clients and tools, and of librdkafka. Settings that have
nothing to do with the connection are ignored, so that one file serves all. A setting of TLS or SASL
that has no counterpart is refused: the command would look more protected than it is.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from quorumlog.cluster.issued_tokens import TokenRequest, one_token
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.sasl import JAAS, MECHANISMS, OAUTHBEARER, jaas_options

_SUBJECT: Final = "unsecuredLoginStringClaim_sub"
_TEXTS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "metadata.broker.list": "bootstrap_servers",
    "sasl.password": "sasl_password",
    "sasl.username": "sasl_username",
    "ssl.ca.location": "ssl_ca",
    "ssl.ca.pem": "ssl_ca",
    "ssl.certificate.location": "ssl_certificate",
    "ssl.certificate.pem": "ssl_certificate",
    "ssl.key.location": "ssl_key",
    "ssl.key.password": "ssl_key_password",
    "ssl.key.pem": "ssl_key",
    "ssl.keystore.certificate.chain": "ssl_certificate",
    "ssl.keystore.key": "ssl_key",
    "ssl.truststore.certificates": "ssl_ca",
}
_STORES: Final[Mapping[str, str]] = {"ssl.truststore": "ssl_ca", "ssl.keystore": "ssl_certificate"}
_ISSUER_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_ISSUER_CA: Final = "https.ca.location"
_SYSTEM_CAS: Final = "probe"
_WITHOUT_EFFECT: Final = frozenset(
    {
        *("ssl.protocol", "ssl.truststore.type", "ssl.keystore.type", _ISSUER_URL),
        *("sasl.login.callback.handler.class", "sasl.oauthbearer.method"),
        *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope"),
    }
)
"""Read together with others, or named by the Java clients for themselves."""
_OF_PROTECTION: Final = ("ssl.", "sasl.", "security.", "enable.ssl.", "enable.sasl.")
_PEM_ONLY: Final = (
    "stores are PEM here: set {store}.type=PEM, and convert the file by"
    " `openssl pkcs12 -in FILE -out NEW.pem -nodes`"
)


def client_options(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return keyword arguments of Admin, Producer and Consumer.

    Raises ValueError with the name of a setting that is wrong or has no counterpart.
    """
    found: dict[str, Any] = {}
    for name, text in properties.items():
        if name in _TEXTS:
            found[_TEXTS[name]] = text
        elif name in _READERS:
            found |= _READERS[name](text, properties)
        elif name.startswith(_OF_PROTECTION) and name not in _WITHOUT_EFFECT:
            raise ValueError(f"{name}: not supported; leave it out if it is not needed")
    return found


def _protocol(text: str, _: Mapping[str, str]) -> dict[str, Any]:
    return {"security_protocol": text.upper()}


def mechanism_of(text: str) -> str:
    """Return Kafka's name of a mechanism in any case. Raises ValueError for another name."""
    name = text.upper()
    if name not in MECHANISMS:
        raise ValueError(f"{text}: the mechanisms are {', '.join(MECHANISMS)}")
    return name


def _mechanism(text: str, _: Mapping[str, str]) -> dict[str, Any]:
    return {"sasl_mechanism": mechanism_of(text)}


def _jaas(text: str, properties: Mapping[str, str]) -> dict[str, Any]:
    mechanism = mechanism_of(properties.get("sasl.mechanism", "GSSAPI"))
    try:
        options = jaas_options(mechanism, text)
    except BadValue as error:
        raise ValueError(str(error)) from None
    if mechanism == OAUTHBEARER:
        if _SUBJECT in options:
            return {"sasl_token": unsigned(options[_SUBJECT])}
        names = ("clientId", "clientSecret", "scope")
        login = (options.get(name, "") for name in names)
        return _issued(properties, _issuer_ca(options), *login)
    if "username" not in options or "password" not in options:
        raise ValueError(f"{JAAS}: it has no username and password for {mechanism}")
    return {"sasl_username": options["username"], "sasl_password": options["password"]}


def unsigned(subject: str) -> Callable[[], str]:
    """Return the source of tokens without a signature, which brokers of tests accept."""
    from quorumlog.node.inter_broker import unsigned_token

    return partial(unsigned_token, subject)


def _issued(
    properties: Mapping[str, str], ca: str | None, client_id: str, secret: str, scope: str
) -> dict[str, Any]:
    """Return a source of tokens of an issuer. `ca`: of its certificate; None: the system's CAs."""
    url = properties.get(_ISSUER_URL, "")
    if not url or not client_id or not secret:
        raise ValueError(
            f"OAUTHBEARER: set {_ISSUER_URL} with the id and the secret of a client, or {_SUBJECT}"
            f" in {JAAS}"
        )
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{_ISSUER_URL}={url}: write it as https://...")
    request = TokenRequest(client_id=client_id, secret=secret, scope=scope, ca=ca)
    return {"sasl_token": partial(one_token, url, request)}


def _issuer_ca(options: Mapping[str, str]) -> str | None:
    """Return the CA of an issuer, in PEM, from the JAAS options of Java's login."""
    text = options.get("ssl.truststore.certificates")
    if text is not None:
        return text
    place = options.get("ssl.truststore.location")
    return None if place is None else _store("ssl.truststore", place, options)["ssl_ca"]


def _oidc(client_id: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Read librdkafka's settings of a client."""
    of_client = "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope"
    login = (properties.get(name, "") for name in of_client)
    place = properties.get(_ISSUER_CA, _SYSTEM_CAS)
    ca = properties.get("https.ca.pem") or (None if place == _SYSTEM_CAS else place)
    return _issued(properties, ca, client_id, *login)


def _oauth(text: str, _: Mapping[str, str]) -> dict[str, Any]:
    """Read librdkafka's `principal=alice scope=...`."""
    words = {name: value for name, _, value in (word.partition("=") for word in text.split())}
    if not words.get("principal"):
        raise ValueError("sasl.oauthbearer.config: it has no principal=NAME")
    return {"sasl_token": unsigned(words["principal"])}


def _unsecure(text: str, properties: Mapping[str, str]) -> dict[str, Any]:
    if text.lower() == "true" and "sasl.oauthbearer.config" not in properties:
        raise ValueError("enable.sasl.oauthbearer.unsecure.jwt: set sasl.oauthbearer.config, too")
    return {}


def _checks_hosts(text: str, _: Mapping[str, str]) -> dict[str, Any]:
    if text.lower() not in {"https", "none", ""}:
        raise ValueError(f"ssl.endpoint.identification.algorithm={text}: https, or empty")
    return {"ssl_check_hostname": text.lower() == "https"}


def _store(store: str, text: str, properties: Mapping[str, str]) -> dict[str, Any]:
    kind = properties.get(f"{store}.type", "PEM" if _is_pem(text) else "JKS")
    if kind.upper() != "PEM":
        raise ValueError(f"{store}.location={text}: {_PEM_ONLY.format(store=store)}")
    return {_STORES[store]: text}


def _is_pem(path: str) -> bool:
    """Whether a file is PEM, or missing: then the error is about the missing file."""
    try:
        return b"-----BEGIN" in Path(path).read_bytes()
    except OSError:
        return True


_READERS: Final[Mapping[str, Callable[[str, Mapping[str, str]], dict[str, Any]]]] = {
    "enable.sasl.oauthbearer.unsecure.jwt": _unsecure,
    "sasl.jaas.config": _jaas,
    "sasl.mechanism": _mechanism,
    "sasl.mechanisms": _mechanism,
    "sasl.oauthbearer.client.id": _oidc,
    "sasl.oauthbearer.config": _oauth,
    "security.protocol": _protocol,
    "ssl.endpoint.identification.algorithm": _checks_hosts,
    "ssl.keystore.location": partial(_store, "ssl.keystore"),
    "ssl.truststore.location": partial(_store, "ssl.truststore"),
}
