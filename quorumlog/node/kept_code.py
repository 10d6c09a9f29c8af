"""Keeps the code of dataclasses beside the compiled modules, as Python keeps the code of modules.

`dataclasses` writes the functions of a class as text and compiles them at each import: for the
classes of a node, that is a third of the CPU of all imports. docs/decisions/0045-fork-server.md
"""

import dataclasses
import marshal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from types import CodeType
from typing import Any


@contextmanager
def kept_code(module_file: str) -> Iterator[None]:
    """Take the code of dataclasses that are made in the block from a file of this module.

    The key is the whole text, so a changed class is compiled; the file is then written anew. It is
    one of the compiled modules: Python's own rules decide whether and where it is written.
    """
    path, loader = f"{cache_from_source(module_file)}.dataclasses", SourceFileLoader("", "")
    try:
        version, kept = marshal.loads(loader.get_data(path))  # noqa: S302 - as safe as modules
    except (OSError, EOFError, TypeError, ValueError):  # there is none, or of another Python
        version, kept = b"", {}
    known: dict[str, CodeType] = kept if version == MAGIC_NUMBER else {}
    used: dict[str, CodeType] = {}

    def run(text: str, names: dict[str, Any], results: dict[str, Any]) -> None:
        code = known.get(text) or compile(text, "<string>", "exec", dont_inherit=True)
        used[text] = code
        exec(code, names, results)  # noqa: S102 - as `dataclasses` does with the text

    vars(dataclasses)["exec"] = run  # the functions of that module find it before the built-in one
    try:
        yield
    finally:
        del vars(dataclasses)["exec"]
    if used.keys() - known.keys() and not sys.dont_write_bytecode:
        loader.set_data(path, marshal.dumps((MAGIC_NUMBER, used)))
