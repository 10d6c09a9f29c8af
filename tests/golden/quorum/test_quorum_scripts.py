"""Scripts of commands, `---`, output. `pytest tests/golden/quorum --rewrite`, then read the diff.

Commit a rewritten file only if you can say why each line changed. The commands are explained in
`quorumlog.chaos.simulation.worlds.quorum.script`.
"""

from pathlib import Path

import pytest

from quorumlog.chaos.simulation.worlds.quorum.script import ScriptedCluster

SCRIPTS = sorted(Path(__file__).parent.glob("*.golden"))


def replay(script: str) -> str:
    cluster = ScriptedCluster()
    blocks = []
    for block in script.strip().split("\n\n"):
        lines = block.partition("\n---")[0].splitlines()
        commands = [line for line in lines if not line.startswith("#")]
        outputs = [output for output in map(cluster.run, commands) if output]
        blocks.append("\n".join([*lines, "---", *outputs]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_quorum_script(path: Path, request: pytest.FixtureRequest) -> None:
    actual = replay(path.read_text())
    if request.config.getoption("--rewrite"):
        path.write_text(actual)
    assert actual == path.read_text()
