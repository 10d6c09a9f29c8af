"""The SASL settings of a listener, under Kafka's names, and the users in its JAAS texts.

Sources: Kafka's BrokerSecurityConfigs, JaasContext and SaslConfigs; KIP-368 (lifetime of sessions),
KIP-768 (OAUTHBEARER). All errors are BadValue; none shows a JAAS text, which has passwords.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from quorumlog.settings.kinds import (
    INT_MAX,
    LONG_MAX,
    PASSWORD,
    TEXT,
    TEXTS,
    BadValue,
    ConfigType,
    SettingRow,
    whole,
)

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)

ENABLED: Final = "sasl.enabled.mechanisms"
JAAS: Final = "sasl.jaas.config"
INTER_BROKER_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
_MAX_REAUTH: Final = "connections.max.reauth.ms"
_FAILED_DELAY: Final = "connection.failed.authentication.delay.ms"
_RECEIVE_MAX: Final = "sasl.server.max.receive.size"
_CALLBACK: Final = "sasl.server.callback.handler.class"
_OAUTH: Final = "sasl.oauthbearer."
_JWKS: Final = "sasl.oauthbearer.jwks.endpoint.url"

_MODULES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "PlainLoginModule": (PLAIN,),
        "ScramLoginModule": (SCRAM_SHA_256, SCRAM_SHA_512),
        "OAuthBearerLoginModule": (OAUTHBEARER,),
    }
)
_SIGNED: Final = "OAuthBearerValidatorCallbackHandler"
_UNSIGNED: Final = "OAuthBearerUnsecuredValidatorCallbackHandler"
_HANDLERS: Final = frozenset({"PlainServerCallbackHandler", _SIGNED, _UNSIGNED})
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


def _whole(default: int, least: int, documentation: str, most: int = LONG_MAX) -> SettingRow:
    kind = whole(ConfigType.LONG if most == LONG_MAX else ConfigType.INT, least, most)
    return SettingRow(kind, str(default), documentation)


ROWS: Final[Mapping[str, SettingRow]] = MappingProxyType(
    {
        ENABLED: SettingRow(
            TEXTS,
            None,
            f"The mechanisms of a SASL listener, which needs one: {', '.join(MECHANISMS)}.",
        ),
        JAAS: SettingRow(
            PASSWORD,
            None,
            "The users of PLAIN (user_NAME=PASSWORD) and the login of this broker at the others "
            "(username, password), in the syntax of JAAS.",
        ),
        INTER_BROKER_MECHANISM: SettingRow(
            TEXT,
            None,
            "The mechanism by which the brokers authenticate to each other. Default: the only one "
            "of the listener.",
        ),
        _MAX_REAUTH: _whole(
            0, 0, "Time after which a client must authenticate again (KIP-368); 0: unlimited."
        ),
        _FAILED_DELAY: _whole(
            100, 0, "Delay of the answer to a failed authentication, and of the close.", INT_MAX
        ),
        _RECEIVE_MAX: _whole(
            524_288, 1, "Maximum bytes of a message before the authentication is complete.", INT_MAX
        ),
        _CALLBACK: SettingRow(
            TEXT,
            None,
            "Kafka's class that checks credentials; it must agree with the mechanism and with "
            f"{_JWKS}.",
        ),
        _JWKS: SettingRow(
            TEXT,
            None,
            "The keys that sign the tokens of OAUTHBEARER: an https, http or file URL of a JWKS. "
            "Without it, tokens need no signature: for tests only.",
        ),
        f"{_OAUTH}expected.audience": SettingRow(
            TEXTS, None, "The accepted audiences of a signed token. Default: any."
        ),
        f"{_OAUTH}expected.issuer": SettingRow(
            TEXT, None, "The accepted issuer of a signed token. Default: any."
        ),
        f"{_OAUTH}scope.claim.name": SettingRow(
            TEXT, "scope", "The claim of a signed token that has its scopes."
        ),
        f"{_OAUTH}sub.claim.name": SettingRow(
            TEXT, "sub", "The claim of a signed token that has the name of its user."
        ),
        f"{_OAUTH}clock.skew.seconds": _whole(
            30, 0, "Accepted difference of the clocks of broker and issuer.", INT_MAX
        ),
        f"{_OAUTH}jwks.endpoint.refresh.ms": _whole(
            3_600_000, 1, "Interval between reads of the keys."
        ),
        f"{_OAUTH}jwks.endpoint.retry.backoff.ms": _whole(
            100, 1, "Delay before the first retry of a failed read of the keys."
        ),
        f"{_OAUTH}jwks.endpoint.retry.backoff.max.ms": _whole(
            10_000, 1, "Maximum delay between retries of a read of the keys."
        ),
    }
)
"""The settings of SASL: each can also be set for one listener, and for one of its mechanisms."""

Lookup: TypeAlias = Callable[[str, str | None], str | None]
"""(setting, mechanism) -> the text that one listener has for it; None: it is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """The checks of the tokens of OAUTHBEARER. `jwks_url` None: tokens without a signature."""

    jwks_url: str | None = None
    audiences: tuple[str, ...] = ()  # accepted; empty: any
    issuer: str | None = None  # accepted; None: any
    scope_claim: str = "scope"
    principal_claim: str = "sub"
    required_scopes: tuple[str, ...] = ()
    clock_skew_ms: int = 0
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLogin:
    """The credentials that a broker presents to the other brokers.

    For OAUTHBEARER, `username` is the subject of a token without signature.
    """

    mechanism: str
    username: str
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismSettings:
    """One mechanism of one listener. `users`: of PLAIN, passwords by name."""

    name: str
    max_reauth_ms: int = 0  # 0: sessions are unlimited
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: TokenSettings | None = None  # of OAUTHBEARER
    login: BrokerLogin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """SASL on one listener; `mechanisms` by Kafka's names, in the order of the setting."""

    mechanisms: Mapping[str, MechanismSettings]
    failed_delay_ms: int = 100
    receive_max_bytes: int = 524_288

    def login(self, mechanism: str | None) -> BrokerLogin:
        """Return this broker's login at the others, by `mechanism` or the only one. BadValue."""
        if not mechanism and len(self.mechanisms) > 1:
            raise BadValue(
                f"{INTER_BROKER_MECHANISM} is not set, and the brokers' listener has several "
                f"mechanisms: {', '.join(self.mechanisms)}"
            )
        name = mechanism or next(iter(self.mechanisms))
        if name not in self.mechanisms:
            raise BadValue(
                f"{INTER_BROKER_MECHANISM}={name}: the brokers' listener has "
                f"{', '.join(self.mechanisms)}"
            )
        login = self.mechanisms[name].login
        if login is None:
            raise BadValue(
                f"{JAAS}: it has no credentials of this broker for {name}, the mechanism between "
                "brokers; add username and password (unsecuredLoginStringClaim_sub for OAUTHBEARER)"
            )
        return login


def read_sasl(lookup: Lookup) -> SaslSettings:
    """Return the SASL settings of a listener. Raises BadValue."""
    names = [part.strip() for part in (lookup(ENABLED, None) or "").split(",") if part.strip()]
    if not names:
        raise BadValue(f"{ENABLED} is not set; choose from {', '.join(MECHANISMS)}")
    for name in names:
        if name not in MECHANISMS:
            raise BadValue(
                f"{ENABLED}: {name} is not supported; choose from {', '.join(MECHANISMS)}"
            )
    return SaslSettings(
        mechanisms={name: _mechanism(name, lookup) for name in names},
        failed_delay_ms=_number(lookup, _FAILED_DELAY),
        receive_max_bytes=_number(lookup, _RECEIVE_MAX),
    )


def _mechanism(name: str, lookup: Lookup) -> MechanismSettings:
    options = _options(name, lookup(JAAS, name) or "")
    _check_handler(name, lookup)
    subject = options.get("unsecuredLoginStringClaim_sub" if name == OAUTHBEARER else "username")
    users = {key[5:]: value for key, value in options.items() if key.startswith("user_")}
    if name == PLAIN and not all(map(all, users.items())):
        raise BadValue(f"{JAAS}: write the users of PLAIN as user_NAME=PASSWORD")
    return MechanismSettings(
        name=name,
        max_reauth_ms=_number(lookup, _MAX_REAUTH, name),
        users=users if name == PLAIN else {},
        tokens=_tokens(options, lookup) if name == OAUTHBEARER else None,
        login=BrokerLogin(mechanism=name, username=subject, password=options.get("password", ""))
        if subject
        else None,
    )


def _check_handler(name: str, lookup: Lookup) -> None:
    """Refuse a class of Kafka that would check other credentials than this broker does."""
    handler = (lookup(_CALLBACK, name) or "").rpartition(".")[2]
    if not handler:
        return
    if handler not in _HANDLERS:
        raise BadValue(f"{_CALLBACK}: {handler} is not supported; leave it out")
    is_signed = bool(lookup(_JWKS, name))
    if (
        name == OAUTHBEARER
        and handler in {_SIGNED, _UNSIGNED}
        and is_signed != (handler == _SIGNED)
    ):
        raise BadValue(
            f"{_CALLBACK}={handler}: {_JWKS} is {'set' if is_signed else 'not set'}; "
            f"with it, tokens are signed ({_SIGNED}), and not without it ({_UNSIGNED})"
        )


def _tokens(options: Mapping[str, str], lookup: Lookup) -> TokenSettings:
    def text(name: str) -> str:
        row = ROWS[_OAUTH + name]
        value: str = row.kind.read(lookup(_OAUTH + name, OAUTHBEARER) or row.default or "")
        return value

    url = text("jwks.endpoint.url")
    if not url:
        claim = options.get("unsecuredValidatorPrincipalClaimName")
        skew = options.get("unsecuredValidatorAllowableClockSkewMs", "0")
        if not skew.isascii() or not skew.isdecimal():
            raise BadValue(f"{JAAS}: unsecuredValidatorAllowableClockSkewMs is no whole number")
        return TokenSettings(
            principal_claim=claim or "sub",
            scope_claim=options.get("unsecuredValidatorScopeClaimName") or "scope",
            required_scopes=tuple(options.get("unsecuredValidatorRequiredScope", "").split()),
            clock_skew_ms=int(skew),
        )
    if urlsplit(url).scheme not in {"http", "https", "file"}:
        raise BadValue(f"{_JWKS}={url}: write it as https://..., http://... or file:///...")
    return TokenSettings(
        jwks_url=url,
        audiences=tuple(one.strip() for one in text("expected.audience").split(",") if one.strip()),
        issuer=text("expected.issuer") or None,
        scope_claim=text("scope.claim.name"),
        principal_claim=text("sub.claim.name"),
        clock_skew_ms=_number(lookup, f"{_OAUTH}clock.skew.seconds", OAUTHBEARER) * 1000,
        refresh_ms=_number(lookup, f"{_OAUTH}jwks.endpoint.refresh.ms", OAUTHBEARER),
        retry_backoff_ms=_number(lookup, f"{_OAUTH}jwks.endpoint.retry.backoff.ms", OAUTHBEARER),
        retry_backoff_max_ms=_number(
            lookup, f"{_OAUTH}jwks.endpoint.retry.backoff.max.ms", OAUTHBEARER
        ),
    )


def _number(lookup: Lookup, name: str, mechanism: str | None = None) -> int:
    row = ROWS[name]
    text = lookup(name, mechanism)
    try:
        number: int = row.kind.read(text or row.default or "")
    except BadValue as error:
        raise BadValue(f"{name}={text}: {error}") from None
    return number


# --- JAAS: MODULE FLAG name=value ...; ---

_WORD: Final = re.compile(
    r"""\s*(?://[^\n]*|/\*.*?\*/|(?P<mark>[;=])|(?P<word>[^\s;="']+)
    |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))\s*""",
    re.VERBOSE | re.DOTALL,
)
_END: Final = (True, ";")
_EQUALS: Final = (True, "=")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_SYNTAX: Final = f'{JAAS}: write it as MODULE required name="value" ... ;'


def jaas_options(mechanism: str, text: str) -> dict[str, str]:
    """Return the options of the login module for a mechanism, also of a client's text."""
    return _options(mechanism, text)


def _options(mechanism: str, text: str) -> dict[str, str]:
    """Return the options of the login module for a mechanism; none if the text has no such."""
    options: dict[str, str] = {}
    for module, found in _modules(text):
        name = module.rpartition(".")[2]
        if name not in _MODULES:
            raise BadValue(f"{JAAS}: {module} is not supported; use one of {', '.join(_MODULES)}")
        if mechanism in _MODULES[name]:
            options |= found
    return options


def _modules(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the login modules of a JAAS text with their options."""
    modules: list[tuple[str, dict[str, str]]] = []
    words = _words(text)
    while words:
        if _END not in words:
            raise BadValue(f"{_SYNTAX} (the last semicolon is missing)")
        end = words.index(_END)
        module, words = words[:end], words[end + 1 :]
        names, equals, values = module[2::3], module[3::3], module[4::3]
        is_whole = len(module) >= 2 and len(names) == len(values)
        if not is_whole or module[1][1].lower() not in _FLAGS or not {*equals} <= {_EQUALS}:
            raise BadValue(_SYNTAX)
        options = {name: value for (_, name), (_, value) in zip(names, values, strict=True)}
        modules.append((module[0][1], options))
    return modules


def _words(text: str) -> list[tuple[bool, str]]:
    """Return the words of a JAAS text; True: a semicolon or an equals sign outside of quotes."""
    words: list[tuple[bool, str]] = []
    at = 0
    while at < len(text):
        found = _WORD.match(text, at)
        if found is None:
            raise BadValue(_SYNTAX)
        at = found.end()
        if found["mark"]:
            words.append((True, found["mark"]))
        elif found["word"]:
            words.append((False, found["word"]))
        elif found["quoted"]:
            quoted = found["quoted"][1:-1]
            words.append((False, _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), quoted)))
    return words
