"""Golden scripts: blocks of `command` lines, `---`, and their output.

Lines with `#` explain. `pytest tests/golden --rewrite` writes the new output: read the diff, and
commit it only if you can explain each changed line.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[[str], str]


def scripts_beside(test_file: str) -> pytest.MarkDecorator:
    """A case for each script in the directory of this test file; its argument is `script`."""
    paths = sorted(Path(test_file).parent.glob("*.golden"))
    assert paths, f"no scripts beside {test_file}"
    return pytest.mark.parametrize("script", paths, ids=lambda path: path.stem)


def replayed(text: str, run: Run) -> str:
    """Return the script with the current output of its commands."""
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.partition("\n---")[0].splitlines()
        commands = [line for line in lines if not line.startswith("#")]
        outputs = [output for output in map(run, commands) if output]
        blocks.append("\n".join([*lines, "---", *outputs] if commands else lines))
    return "\n\n".join(blocks) + "\n"


def check(script: Path, run: Run, request: pytest.FixtureRequest) -> None:
    """Run a script with a world of its own, and compare; with `--rewrite`, write it."""
    actual = replayed(script.read_text(), run)
    if request.config.getoption("--rewrite"):
        script.write_text(actual)
    assert actual == script.read_text()
