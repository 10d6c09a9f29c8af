"""Compiles the optional native lane. Without a C compiler the package is built without it."""

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

SOURCES = Path("quorumlog", "native")
LIMITED_API = "0x030B0000"  # of Python 3.11: one library for it and all later versions


class NativeLane(BuildHookInterface[Any]):
    """Compiles `quorumlog/native/_lane` beside its sources, for a wheel or an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; the tag of the wheel then names the platform.

        A wheel ("standard") never has an earlier build's library: `CC=false` makes a pure wheel.
        """
        try:
            library = compile_lane(force=version == "standard")
        except (CCompilerError, ExecError, PlatformError) as error:
            self.app.display_warning(f"without the native lane: {error}")
            return
        build_data["artifacts"].append(f"/{library}")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"


def compile_lane(*options: str, force: bool = False) -> Path:
    """Compile with more `options` of the compiler; return the path of the library.

    `force`: also if the library is newer than its sources, as with `options`. The working
    directory must be the root of the project.
    """
    extension = Extension(
        "quorumlog.native._lane",
        sorted(map(str, SOURCES.glob("*.c"))),
        depends=sorted(map(str, SOURCES.glob("*.h"))),
        define_macros=[("Py_LIMITED_API", LIMITED_API)],
        extra_compile_args=["-O3", "-fvisibility=hidden", *options],
        extra_link_args=list(options),
        py_limited_api=True,
    )
    command = build_ext(Distribution({"name": "quorumlog", "ext_modules": [extension]}))
    command.inplace = True
    command.force = force or bool(options)
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(extension.name)).relative_to(Path.cwd())


if __name__ == "__main__":
    compile_lane()
