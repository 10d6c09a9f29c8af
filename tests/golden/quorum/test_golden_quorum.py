"""Stories of a quorum, as golden scripts (`tests.support.golden`).

The commands are explained in `quorumlog.chaos.simulation.worlds.quorum.script`.
"""

from pathlib import Path

import pytest

from quorumlog.chaos.simulation.worlds.quorum.script import ScriptedCluster
from tests.support import golden


@golden.scripts_beside(__file__)
def test_quorum_script(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, ScriptedCluster().run, request)
