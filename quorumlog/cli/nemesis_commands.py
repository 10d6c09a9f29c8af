"""`quorumlog nemesis VERB`: the verbs of a running cluster, through its control server.

The commands are made from the table of verbs. They import no client and no lab: a shell script may
call them in a loop.
"""

import json as json_text
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from inspect import Parameter as Argument
from inspect import Signature
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import typer

from quorumlog.chaos.control.kinds import Misuse, once
from quorumlog.chaos.control.verb import Parameter, Verb
from quorumlog.chaos.control.verbs import VERBS
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json, command_group
from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    cluster_errors,
    fail,
    outcome,
    parse_settings,
)
from quorumlog.cluster.control_server import Connection, has_ended, load

app = command_group("Break and mend a running cluster, and judge its clients' histories.")

_TIMEOUT_S: Final = 660.0  # a verb that waits does so for ten minutes at most
_SET: Final = "set"


def _add(verb: Verb) -> None:
    def command(directory: Path, *, json: bool, **texts: Any) -> None:
        settings = parse_settings(texts.pop(_SET, None) or [], f"--{_SET}")
        written = {name: text for name, text in texts.items() if text is not None}
        try:
            given = verb.read(written)
            others = {name: _plain(text) for name, text in settings.items()}
            given = verb.checked(once([*given.items(), *others.items()]))
        except Misuse as error:
            fail(str(error), EXIT_USAGE)
        answer = _ask(directory, verb, given)
        outcome(answer, *_lines(verb, answer), json=json)

    # typer reads the arguments and options from the signature
    command.__signature__ = _signature_of(verb)  # type: ignore[attr-defined]
    command.__annotations__ = {
        name: one.annotation for name, one in _signature_of(verb).parameters.items()
    }
    app.command(verb.name, help=verb.text)(command)


def _signature_of(verb: Verb) -> Signature:
    own = [_argument_of(one) for one in sorted(verb.parameters, key=lambda one: not one.leads)]
    if verb.others:
        option = typer.Option(f"--{_SET}", metavar="NAME=VALUE", help=f"One of {verb.others}.")
        own.append(_keyword(_SET, Annotated[list[str] | None, option], None))
    shared = [_keyword("directory", Dir, DEFAULT_DIR), _keyword("json", Json, False)]
    return Signature([*own, *shared])


def _argument_of(parameter: Parameter) -> Argument:
    metavar = parameter.name.upper()
    text = f"{parameter.text[0].upper()}{parameter.text[1:]}."
    if not parameter.leads:
        option = typer.Option(f"--{parameter.name.replace('_', '-')}", metavar=metavar, help=text)
        if parameter.required:
            return _keyword(parameter.name, Annotated[str, option], Argument.empty)
        return _keyword(parameter.name, Annotated[str | None, option], None)
    argument = typer.Argument(metavar=metavar, help=text, show_default=False)
    if parameter.required:
        return _keyword(parameter.name, Annotated[str, argument], Argument.empty)
    return _keyword(parameter.name, Annotated[str | None, argument], None)


def _keyword(name: str, annotation: Any, default: object) -> Argument:
    return Argument(name, Argument.KEYWORD_ONLY, annotation=annotation, default=default)


def _plain(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _ask(directory: Path, verb: Verb, given: Mapping[str, Any]) -> Any:
    """Return the answer of the control server. Ends the command if it is an error."""
    with cluster_errors():
        connection = load(directory.absolute())
    if connection is None:
        if has_ended(directory.absolute()):
            fail(
                f"the control server of the cluster in {directory} has ended; "
                f"`quorumlog down --dir {directory}` stops the nodes that it has left, "
                "`quorumlog up --control PORT` starts both"
            )
        fail(
            f"no control server runs for the cluster in {directory}; "
            "`quorumlog up --control PORT` starts a cluster with one"
        )
    try:
        status, answer = _request(connection, verb, given)
    except (OSError, HTTPException, ValueError) as error:
        fail(f"{connection.url} (control server): {error}; see {directory / 'control-server.log'}")
    if status >= 400:
        wrong = EXIT_USAGE if status == 400 else EXIT_FAILED
        fail(f"{answer['error']}; {answer['hint']}", wrong)
    return answer


def _request(connection: Connection, verb: Verb, given: Mapping[str, Any]) -> tuple[int, Any]:
    address = urlsplit(connection.url)
    in_path = {one.name for one in verb.parameters if one.in_path}
    path = verb.path.format(**{name: quote(str(given[name])) for name in in_path})
    rest = {name: value for name, value in given.items() if name not in in_path}
    headers = {"Authorization": f"Bearer {connection.token}"}
    body = None
    if verb.method == "GET":
        path += f"?{urlencode(rest)}" if rest else ""
    else:
        body, headers["Content-Type"] = json_text.dumps(rest), "application/json"
    client = HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
    try:
        client.request(verb.method, path, body, headers)
        response = client.getresponse()
        return response.status, json_text.loads(response.read())
    finally:
        client.close()


def _lines(verb: Verb, answer: Any) -> list[str]:
    """Return the answer for a person: affected nodes in one line, and others as JSON."""
    match answer:
        case {"nodes": [*nodes]} if all(isinstance(node, int) for node in nodes):
            return [f"{verb.name}: node {', '.join(map(str, nodes)) or '-'}"]
        case _:
            return json_text.dumps(answer, indent=2).splitlines()


for _verb in VERBS.values():
    _add(_verb)
