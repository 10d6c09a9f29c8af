"""Plant a mutant in this process: the code of its function is replaced, the function stays."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any


class NotPlanted(Exception):
    """The mutant is no program, or the function is nowhere to be found."""


def plant(path: str, function: str, mutated: str) -> None:
    """Replace the code of a function that is imported. Raises NotPlanted.

    `path` is relative to the root, `function` the qualified name of a function of its module or of
    a class there, `mutated` the text of the whole module.
    """
    module = sys.modules.get(module_of(path))
    if module is None:
        raise NotPlanted(f"{path} is not imported")
    originals = [*_functions(module, function.split("."))]
    planted = 0
    for original in originals:
        replacement = _compiled(mutated, original.__code__)
        if replacement is not None:
            original.__code__ = replacement
            planted += 1
    if not planted:
        raise NotPlanted(f"{path} has no function {function}")


def module_of(path: str) -> str:
    """Return the name of the module in a file."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _functions(owner: Any, names: list[str]) -> Iterator[FunctionType]:
    """Yield the functions of a qualified name: a property has up to three."""
    found = vars(owner).get(names[0])
    if found is None:
        return
    if len(names) > 1:
        yield from _functions(found, names[1:])
        return
    parts = [found.fget, found.fset, found.fdel] if isinstance(found, property) else [found]
    for part in filter(None, parts):
        function = part
        for inner in ("__func__", "func", "__wrapped__"):  # class methods, cached properties, wraps
            while not isinstance(function, FunctionType) or inner == "__wrapped__":
                if not hasattr(function, inner):
                    break
                function = getattr(function, inner)
        if isinstance(function, FunctionType):
            yield function


def _compiled(mutated: str, original: CodeType) -> CodeType | None:
    """Return the function's code in the mutated text; None: it is not there."""
    try:
        tree = ast.parse(mutated)
        if "__class__" in original.co_freevars:
            _keep_class(tree, original.co_name)
        whole = compile(tree, original.co_filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise NotPlanted(f"the mutant is no program: {error}") from error
    for code in _codes(whole):
        is_it = code.co_qualname == original.co_qualname
        if is_it and code.co_firstlineno == original.co_firstlineno:
            return code
    return None


def _keep_class(tree: ast.Module, name: str) -> None:
    """Mention `__class__`: the mutant may lack the `super()` for which the function has a cell."""
    mention = ast.parse("if False:\n    __class__").body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            node.body += mention
    ast.fix_missing_locations(tree)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)
