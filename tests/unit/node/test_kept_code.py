"""The code of dataclasses is kept in a file, and taken from there only for the same text."""

import dataclasses
import os
import sys
import traceback
from pathlib import Path

import pytest

from quorumlog.node.kept_code import kept_code

TEXT = (
    "import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass Pair:\n    a: int\n    b: int"
)


@pytest.fixture(autouse=True)
def compiled_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep compiled modules below a directory of their own; return it."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path


def kept_file(directory: Path) -> Path:
    (found,) = directory.rglob("*.dataclasses")
    return found


def make_pair(text: str = TEXT) -> type:
    """Make a class, its code kept; return it."""
    names: dict[str, type] = {}
    with kept_code(__file__):
        exec(text, names)
    return names["Pair"]


def compiled_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each text is appended that is compiled from now on."""
    texts: list[str] = []

    def spy(text: str, *arguments: str, dont_inherit: bool) -> object:
        texts.append(text)
        return compile(text, *arguments, dont_inherit=dont_inherit)

    monkeypatch.setattr("quorumlog.node.kept_code.compile", spy, raising=False)
    return texts


def test_the_second_import_compiles_nothing_and_makes_equal_classes(
    monkeypatch: pytest.MonkeyPatch, compiled_modules: Path
) -> None:
    first = make_pair()
    content = kept_file(compiled_modules).read_bytes()
    texts = compiled_texts(monkeypatch)
    second = make_pair()
    assert texts == []
    assert kept_file(compiled_modules).read_bytes() == content
    for made in (first, second):
        assert repr(made(1, 2)) == "Pair(a=1, b=2)"
        assert made(1, 2) == made(1, 2) != made(1, 3)
        assert len({made(1, 2), made(1, 2)}) == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            made(1, 2).a = 3


def test_a_changed_class_is_compiled_and_replaces_the_code_of_the_former_one(
    monkeypatch: pytest.MonkeyPatch, compiled_modules: Path
) -> None:
    make_pair()
    size = kept_file(compiled_modules).stat().st_size
    texts = compiled_texts(monkeypatch)
    assert repr(make_pair(TEXT.replace("b:", "c:"))(1, 2)) == "Pair(a=1, c=2)"
    assert texts
    assert kept_file(compiled_modules).stat().st_size == size
    texts.clear()
    make_pair(TEXT.replace("b:", "c:"))
    assert texts == []


def test_each_class_of_one_text_takes_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has the code of a text as often as classes have it, also when there are more."""
    texts = compiled_texts(monkeypatch)
    compiled = []
    for count in (1, 1, 3, 3, 2, 3):
        texts.clear()
        make_pair("\n".join([TEXT] * count))
        compiled.append(len(texts))
    functions = compiled[0]
    assert functions > 0
    assert compiled == [functions, 0, 2 * functions, 0, 0, 0]


def test_a_damaged_file_counts_as_no_file_and_is_not_interpreted(
    monkeypatch: pytest.MonkeyPatch, compiled_modules: Path
) -> None:
    """`marshal` would reserve 7 GB for the tuple that begins with `(1, 2)`."""
    make_pair()
    kept = kept_file(compiled_modules)
    whole = kept.read_bytes()
    places = [*range(24), *range(24, len(whole), 97)]
    cuts = [whole[:place] for place in places]
    flips = [
        whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        for place in places
    ]
    for content in (b"(1, 2)", b"i\x01\x00\x00\x00", *cuts, *flips):
        kept.write_bytes(content)
        with monkeypatch.context() as patch:
            patch.setattr("quorumlog.node.kept_code.marshal.loads", pytest.fail)
            assert repr(make_pair()(1, 2)) == "Pair(a=1, b=2)"
        assert kept.read_bytes() == whole


def test_the_code_of_another_python_is_not_used(
    monkeypatch: pytest.MonkeyPatch, compiled_modules: Path
) -> None:
    with monkeypatch.context() as other:
        other.setattr("quorumlog.node.kept_code._VERSION", b"version 0")
        make_pair()
    texts = compiled_texts(monkeypatch)
    make_pair()
    assert texts
    assert b"version 0" not in kept_file(compiled_modules).read_bytes()


def test_nothing_is_kept_where_python_keeps_no_compiled_modules(
    monkeypatch: pytest.MonkeyPatch, compiled_modules: Path
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    make_pair()
    assert not [*compiled_modules.rglob("*.dataclasses")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_no_error(compiled_modules: Path) -> None:
    compiled_modules.chmod(0o500)
    assert repr(make_pair()(1, 2)) == "Pair(a=1, b=2)"


def test_after_the_block_dataclasses_compiles_by_itself_again() -> None:
    with pytest.raises(ZeroDivisionError), kept_code(__file__):
        raise ZeroDivisionError
    assert not hasattr(dataclasses, "exec")


def test_a_block_inside_of_a_block_leaves_the_outer_one_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = compiled_texts(monkeypatch)
    with kept_code(__file__):
        make_pair()
        texts.clear()
        exec(TEXT.replace("b:", "c:"), {})
        assert texts
    assert not hasattr(dataclasses, "exec")


@pytest.mark.parametrize("import_number", [1, 2])
def test_an_error_that_passes_through_kept_code_has_a_traceback(import_number: int) -> None:
    text = f"{TEXT}\n    def __post_init__(self):\n        raise ValueError('no such pair')"
    pair = [make_pair(text) for _ in range(import_number)][-1]
    with pytest.raises(ValueError, match="no such pair") as found:
        pair(1, 2)
    lines = traceback.format_exception(found.value)
    assert '  File "<string>", line 1, in __init__\n' in lines
    code = vars(pair)["__init__"].__code__
    assert {line for *_, line in code.co_lines()} == {1}
    assert len([*code.co_positions()]) == len(code.co_code) // 2
