"""A verb of a running cluster: its name, route, parameters and function.

Light: `quorumlog nemesis` imports it for every verb.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from quorumlog.chaos.control.kinds import Kind, Misuse


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `leads`: an argument of the command, not an option; `in_path`: of the path."""

    name: str
    kind: Kind
    text: str
    required: bool = False
    leads: bool = False
    in_path: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb.

    `call`: with the lab and the given parameters, as keywords; it blocks.
    `in_line`: it changes the cluster: such verbs are carried out one after the other.
    `others`: the text on further parameters, whose names depend on the given ones; "": none.
    `answer`: an example of the answer.
    """

    name: str
    method: str
    path: str
    text: str
    call: Callable[..., Any]
    answer: Mapping[str, Any]
    parameters: tuple[Parameter, ...] = ()
    in_line: bool = True
    others: str = ""
    by_name: Mapping[str, Parameter] = field(init=False)

    def __post_init__(self) -> None:
        named = {parameter.name: parameter for parameter in self.parameters}
        object.__setattr__(self, "by_name", named)

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a request, checked. Raises Misuse."""
        for name in given:
            if name not in self.by_name and not self.others:
                known = [*self.by_name]
                hint = f"it has {', '.join(known)}" if known else "it has none"
                raise Misuse(f"{self.name} has no parameter {name!r}", like(name, known) + hint)
        for parameter in self.parameters:
            if parameter.required and given.get(parameter.name) is None:
                raise Misuse(
                    f"{self.name} needs {parameter.name}",
                    f"{parameter.name} is {parameter.kind.noun}: {parameter.text}",
                )
        return {
            name: self.by_name[name].kind.checked(name, value) if name in self.by_name else value
            for name, value in given.items()
            if value is not None
        }

    def read(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters that texts stand for, as those of a URL. Raises Misuse."""
        return self.checked(
            {
                name: self.by_name[name].kind.from_text(name, text)
                if name in self.by_name
                else text
                for name, text in texts.items()
            }
        )


def like(name: str, known: list[str]) -> str:
    """Return the beginning of a hint for a mistyped name, or ""."""
    return "".join(f"did you mean {one}? " for one in get_close_matches(name, known, n=1))
