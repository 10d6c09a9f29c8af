"""Plant a mutant in this process: the code of its function is replaced, the function stays."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

_DEPTH: Final = 3  # of decorators around a function


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
    originals = {id(one): one for one in _functions(module, function.split("."))}
    planted = 0
    for original in originals.values():
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


def _functions(module: ModuleType, names: list[str]) -> Iterator[FunctionType]:
    """Yield the functions of a qualified name: a property has up to three."""
    owner: Any = module
    for name in names[:-1]:
        owner = vars(owner).get(name)
        if owner is None:
            return
    yield from _within(vars(owner).get(names[-1]), names[-1], _DEPTH)


def _within(found: Any, name: str, depth: int) -> Iterator[FunctionType]:
    """Yield the functions of a name in what decorators have made of them."""
    if isinstance(found, FunctionType):
        if found.__code__.co_name == name:
            yield found
        cells = [cell.cell_contents for cell in found.__closure__ or ()]
        inner = [*vars(found).values(), *cells]  # `__wrapped__`, or a decorator's variable
    elif isinstance(found, property):
        inner = [found.fget, found.fset, found.fdel]
    else:
        slots = [one for base in type(found).__mro__ for one in getattr(base, "__slots__", ())]
        names = ("__func__", "func", *slots, *getattr(found, "__dict__", ()))
        inner = [getattr(found, one, None) for one in names]
    if depth:
        for one in inner:
            if callable(one) or isinstance(one, property | classmethod | staticmethod):
                yield from _within(one, name, depth - 1)


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
