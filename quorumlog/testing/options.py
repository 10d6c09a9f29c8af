"""The options of the plugin, on pytest's command line and in its configuration file."""

import secrets
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

import pytest

Scope = Literal["function", "class", "module", "package", "session"]

SCOPES: Final[tuple[Scope, ...]] = ("function", "class", "module", "package", "session")
_SCOPE_SETTING: Final = "quorumlog_cluster_scope"
_RESET_SETTING: Final = "quorumlog_cluster_reset"
_SEEDS: Final = 1_000_000  # a drawn seed is below this: short enough to be typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The plugin's options of a run of pytest.

    seed: replaces the seed of every test. store: the directory of runs; by default, in pytest's
    temporary directory. keep: also keep passing runs. cluster_reset: each test leaves a shared
    cluster as it was.
    """

    cluster_scope: Scope
    cluster_reset: bool
    seed: int | None
    store: Path | None
    keep: bool


OPTIONS: Final = pytest.StashKey[Options]()


def add_options(parser: pytest.Parser) -> None:
    """Register the options."""
    group = parser.getgroup("quorumlog", "quorumlog: clusters, faults and histories")
    scope = f"how long a cluster lives: {', '.join(SCOPES)} (default: function)"
    parser.addini(_SCOPE_SETTING, scope, default="function")
    reset = "whether each test leaves a shared cluster as it found it (default: false)"
    parser.addini(_RESET_SETTING, reset, type="bool", default=False)
    group.addoption("--quorumlog-cluster-scope", metavar="SCOPE", help=scope)
    group.addoption(
        "--quorumlog-seed",
        metavar="N",
        help="the seed of every chaos test and nemesis; `random` draws one and shows it",
    )
    group.addoption(
        "--quorumlog-store", metavar="DIR", help="keep failed runs here, not in a temporary place"
    )
    group.addoption(
        "--quorumlog-keep", action="store_true", help="keep the files of passing tests too"
    )


def read_options(config: pytest.Config) -> Options:
    """Return the options. Raises UsageError for invalid values.

    A drawn seed replaces the word `random`, so that workers of xdist receive it, too.
    """
    option = config.option
    if option.quorumlog_seed == "random":
        option.quorumlog_seed = str(secrets.randbelow(_SEEDS))
    store = option.quorumlog_store
    return Options(
        cluster_scope=_scope(option.quorumlog_cluster_scope or config.getini(_SCOPE_SETTING)),
        cluster_reset=bool(config.getini(_RESET_SETTING)),
        seed=_seed(option.quorumlog_seed),
        store=None if store is None else config.invocation_params.dir / store,
        keep=bool(option.quorumlog_keep),
    )


def _scope(text: str) -> Scope:
    if text in SCOPES:
        return text
    raise pytest.UsageError(
        f"{_SCOPE_SETTING} = {text!r}{did_you_mean(text, SCOPES)}; there are {', '.join(SCOPES)}"
    )


def _seed(text: str | None) -> int | None:
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    raise pytest.UsageError(f"--quorumlog-seed {text}: a whole number or `random` is expected")


def did_you_mean(name: str, known: tuple[str, ...]) -> str:
    """Return a suggestion for a mistyped name, or ""."""
    return "".join(f" - did you mean {like}?" for like in get_close_matches(name, known, n=1))
