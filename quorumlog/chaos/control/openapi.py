"""The OpenAPI document (3.1) of the verbs, of which clients and pages can be generated."""

from collections.abc import Mapping
from typing import Any, Final

from quorumlog.chaos.control.verb import Parameter, Verb
from quorumlog.chaos.control.verbs import VERBS

PATH: Final = "/v1/openapi.json"
_FAILED: Final = {
    "description": "The request has no effect, or the cluster could not fulfil it.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def document() -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for verb in VERBS.values():
        paths.setdefault(verb.path, {})[verb.method.lower()] = _operation(verb)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "quorumlog: control of a running cluster",
            "version": "1",
            "description": "Verbs that break and mend a cluster, and judge its clients' histories.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "hint"],
                    "properties": {"error": {"type": "string"}, "hint": {"type": "string"}},
                }
            },
        },
    }


def _operation(verb: Verb) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": verb.name,
        "summary": verb.text,
        "responses": {
            "200": {
                "description": "Done.",
                "content": {
                    "application/json": {"schema": {"type": "object"}, "example": verb.answer}
                },
            },
            "4XX": _FAILED,
        },
    }
    outside = [one for one in verb.parameters if one.in_path or verb.method == "GET"]
    if outside:
        described["parameters"] = [_outside(one) for one in outside]
    inside = [one for one in verb.parameters if one not in outside]
    if inside:
        described["requestBody"] = _body(verb, inside)
    return described


def _outside(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "path" if parameter.in_path else "query",
        "required": parameter.required,
        "description": parameter.text,
        "schema": dict(parameter.kind.schema),
    }


def _body(verb: Verb, inside: list[Parameter]) -> dict[str, Any]:
    required = [one.name for one in inside if one.required]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {one.name: _property(one) for one in inside},
        "additionalProperties": {"description": verb.others} if verb.others else False,
    }
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}


def _property(parameter: Parameter) -> Mapping[str, Any]:
    return {**parameter.kind.schema, "description": parameter.text}
