"""A fault that clients of a cluster will meet, with its cause and its remedy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`subject`: an address, a broker or a setting; `name`: the kind of the fault, for scripts."""

    name: str
    subject: str
    why: str
    remedy: str
