"""Finds out whether a node may use TLS, before its modules are imported: then `ssl` comes first.

asyncio, aiohttp and uvloop take TLS from `ssl` when they are imported, or never; and `ssl` takes
memory that a node without TLS saves. A word in a comment or a path is a false alarm, and harmless.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

MODULE: Final = "ssl"
_WORD: Final = re.compile(
    r"(?<![a-z0-9])ssl(?![a-z0-9])|control[._]tls[._]"  # SASL_SSL, ssl.keystore, control.tls.ca
    r"|jwks[._]endpoint[._]url\s*=\s*https:",  # the keys of tokens of OAUTHBEARER
    re.IGNORECASE,
)
_CONTINUED: Final = re.compile(r"\\\n\s*")  # a backslash continues a line, but not a comment
_ENVIRONMENT_PREFIX: Final = "QUORUMLOG_CONFIG_"


def mentions_tls(texts: Iterable[str]) -> bool:
    """Whether a text has a word of which a setting of TLS has one."""
    return any(_WORD.search(text) or _WORD.search(_CONTINUED.sub("", text)) for text in texts)


def settings_texts(arguments: Iterable[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts that may have a node's settings: arguments, their files, the environment."""
    for argument in arguments:
        yield _content(argument)
    for name, value in environment.items():
        if name.startswith(_ENVIRONMENT_PREFIX):
            yield f"{name}={value}"


def _content(argument: str) -> str:
    """Return the text of a file, or the argument if it names none that can be read.

    The node itself reads a pipe, which can be read once: its text is taken to mention TLS.
    """
    try:
        path = Path(argument)
        if path.is_fifo() or path.is_char_device():
            return MODULE
        return path.read_text(encoding="utf-8") if path.is_file() else argument
    except (OSError, ValueError):  # the node reports it
        return argument
