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
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from types import CodeType
from typing import Any, Final

_Codes = dict[bytes, list[CodeType]]
"""By Python's hash of the text (PEP 552): its code, once for each class that has this text."""
_VERSION: Final = MAGIC_NUMBER + b"5"  # of Python's code, and of this file's form
_HASH_SIZE: Final = 8
_UNITS_MAX: Final = 8  # of two bytes of code that one entry of a table of lines covers
_SAME_LINE: Final = 0xE8  # such an entry: the number of its units less 1 is added
_FILES: Final = SourceFileLoader("", "")


@contextmanager
def kept_code(module_file: str) -> Iterator[None]:
    """Take the code of dataclasses that are made in the block from a file of this module.

    A changed class has another text: it is compiled, and the file is written anew. It is one of the
    compiled modules: Python's own rules decide whether and where it is written.
    """
    path = f"{cache_from_source(module_file)}.dataclasses"
    left, made = _read(path), _Codes()

    def run(text: str, names: dict[str, Any], results: dict[str, Any]) -> None:
        key = source_hash(text.encode())
        codes = left.get(key)
        if codes:
            code = codes.pop()  # so that the next imports get its memory
        else:
            code = _on_one_line(compile(text, "<string>", "exec", dont_inherit=True))
            made.setdefault(key, []).append(code)
        exec(code, names, results)  # noqa: S102 - as `dataclasses` does with the text

    before = vars(dataclasses).get("exec")  # of a block around this block
    vars(dataclasses)["exec"] = run  # the functions of that module find it before the built-in one
    try:
        yield
    finally:
        del vars(dataclasses)["exec"]
        if before is not None:
            vars(dataclasses)["exec"] = before
    if made and not sys.dont_write_bytecode:
        kept = _read(path)
        whole = {key: kept[key] for key, codes in left.items() if not codes and key in kept}
        for key, codes in made.items():
            whole[key] = whole.get(key, []) + codes
        content = marshal.dumps(whole)
        _FILES.set_data(path, _VERSION + source_hash(content) + content)


def _on_one_line(code: CodeType) -> CodeType:
    """Return the code with all of its instructions on line 1: its text is in no file.

    Its table of lines must cover it: `traceback` fails where it finds no line.
    """
    constants = tuple(
        _on_one_line(one) if isinstance(one, CodeType) else one for one in code.co_consts
    )
    whole, rest = divmod(len(code.co_code) // 2, _UNITS_MAX)
    units = [_UNITS_MAX] * whole + [rest] * bool(rest)
    lines = b"".join(bytes((_SAME_LINE + count - 1, 0)) for count in units)
    return code.replace(
        co_consts=constants, co_linetable=lines, co_firstlineno=1, co_qualname=code.co_name
    )


def _read(path: str) -> _Codes:
    """Return the codes of a file; none of a missing one, of another version, or of damaged bytes.

    `marshal` reserves the memory of any size it reads, and may crash: it gets whole content alone.
    """
    try:
        read = _FILES.get_data(path)
    except OSError:
        return {}
    head = len(_VERSION) + _HASH_SIZE
    content = read[head:]
    if read[:head] != _VERSION + source_hash(content):
        return {}
    codes: _Codes = marshal.loads(content)  # noqa: S302 - as safe as modules
    return codes
