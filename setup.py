"""Builds the C files of the package into one library. Everything else about it stands in pyproject.toml.

The library is loaded with ctypes and knows nothing of Python, so one build serves every Python version: the wheel is tagged
`py3-none-<platform>`. Where no compiler works the package installs all the same, and its torch twin serves.
"""

import os
import shutil
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = ["-O3", "-g0", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden"]
# Threaded jumps make branches of the limits inside the exponentials: a tenth slower.
FLAGS += ["-fno-thread-jumps"]

FOLDER = "src/polyseme/kernels"
SOURCES = [f"{FOLDER}/{name}.c" for name in ("cell", "steps", "training")]
HEADERS = [f"{FOLDER}/{name}.h" for name in ("cell", "vector")]


class build_library(build_ext):
    """Compiles with the system's compiler, into a file without a Python version in its name."""

    def build_extensions(self) -> None:
        wanted = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        if self.compiler.compiler_type == "unix" and shutil.which(wanted.split()[0]) is None:
            # Some Pythons remember a compiler of the machine they were built on.
            found = next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")
            self.compiler.set_executables(compiler_so=f"{found} -fPIC", linker_so=f"{found} -shared")
        super().build_extensions()

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"


class platform_wheel(bdist_wheel):
    """Any Python 3, this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("polyseme.kernels._cell", SOURCES, depends=HEADERS, extra_compile_args=FLAGS, optional=True)],
    cmdclass={"build_ext": build_library, "bdist_wheel": platform_wheel},
)
