"""The principal of a client with a certificate: `ssl.principal.mapping.rules` (KIP-371).

The first rule whose pattern matches the whole distinguished name gives the user's name: every
match of the pattern is replaced, as Java's `replaceAll` does. The patterns are RE2's: time and
memory are bounded, whatever a certificate contains. Without rules but DEFAULT, RE2 is not loaded.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from quorumlog.broker.authentication.core.distinguished_names import subject_name
from quorumlog.extras import install_command
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.tls import PrincipalRule

MEMORY_BYTES_MAX: Final = 1 << 20  # of one compiled pattern
_SETTING: Final = "ssl.principal.mapping.rules"
Rename = Callable[[str], str | None]


class CertificatePrincipals:
    """The rules of one listener, compiled. Raises BadValue for a pattern that RE2 refuses."""

    def __init__(self, rules: Sequence[PrincipalRule]) -> None:
        self._rules: Final = [_compiled(rule) for rule in rules]

    def principal_of(self, certificate: bytes) -> str | None:
        """Return `User:<name>` for a certificate in DER; None: no rule matches its subject.

        Raises ValueError: it is no certificate.
        """
        name = self.name_of(subject_name(certificate))
        return None if name is None else f"User:{name}"

    def name_of(self, distinguished_name: str) -> str | None:
        """Return the name by the first rule that matches; None: no rule does."""
        for rename in self._rules:
            name = rename(distinguished_name)
            if name is not None:
                return name
        return None


def _compiled(rule: PrincipalRule) -> Rename:
    if rule.pattern is None:
        return str
    pattern, cases = _pattern(rule.pattern), {"L": str.lower, "U": str.upper}
    replacement, recase = _fitting(rule.replacement, pattern.groups), cases.get(rule.case, str)

    def rename(name: str) -> str | None:
        if pattern.fullmatch(name) is None:
            return None
        parts, position = list[str](), 0
        for found in pattern.finditer(name):
            parts.append(name[position : found.start()])
            parts += [one if isinstance(one, str) else found[one] or "" for one in replacement]
            position = found.end()
        return recase("".join(parts) + name[position:])

    return rename


def _fitting(replacement: Sequence[str | int], groups: int) -> list[str | int]:
    """Return the parts with references to existing groups alone, as in Kafka.

    A number that is too large loses digits at its end, which are text; `$7` without a seventh
    group is text, too.
    """
    parts: list[str | int] = []
    for part in replacement:
        if isinstance(part, str):
            parts.append(part)
            continue
        digits = str(part)
        kept = next((n for n in range(len(digits), 0, -1) if int(digits[:n]) <= groups), 0)
        parts += [int(digits[:kept]), digits[kept:]] if kept else [f"${digits}"]
    return parts


def _pattern(text: str) -> Any:
    try:
        import re2
    except ModuleNotFoundError:
        command = install_command("re2")
        raise BadValue(f"{_SETTING}: a RULE needs google-re2: {command}") from None
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "it is not one of RE2's"
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise BadValue(f"{_SETTING}: the pattern {text!r} is refused: {shown}") from error
