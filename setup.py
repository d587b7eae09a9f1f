"""Compiles the per-record loops where a C compiler is; without one the same sources run interpreted.

The sources are plain Python; their C types stand beside them in .pxd files (Cython's pure-Python mode). A build that
fails is reported and left out: `kcli --version` says which of the two runs. KCLI_PURE_PYTHON=1 leaves it out on purpose.
Both Cython and the C compiler take all cores.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED_MODULES = [
    "kcli/format/record_scan.py",
    "kcli/format/batch_header.py",
    "kcli/format/append_scan.py",
    "kcli/format/batch_scan.py",
    "kcli/format/batch_passes.py",
    "kcli/format/record_copy.py",
    "kcli/log/cleaner/offset_map.py",
    "kcli/log/cleaner/transaction_metadata.py",
    "kcli/log/cleaner/batch_reader.py",
    "kcli/log/cleaner/retained_offsets.py",
    "kcli/log/cleaner/offset_map_builder.py",
    "kcli/log/cleaner/batch_filter.py",
    "kcli/inspect/dumping/record_lines.py",
    "kcli/inspect/dumping/batch_lines.py",
    "kcli/inspect/dumping/record_rows.py",
    "kcli/spark/arrow_columns.py",
    "kcli/spark/batch_spans.py",
]
# The module for code that Cython would repeat in every module, above all views of arrays: a build takes a third of the time.
SHARED_CODE = "kcli.format.cython_shared"


class OptionalBuildExt(build_ext):
    """Builds what it can, on all cores; a module that cannot be compiled stays plain Python."""

    failed: set[str]

    def finalize_options(self):
        """Compile as many modules at a time as there are cores, unless --parallel says how many."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        """Build every module, or say why not."""
        self.failed = set()
        try:
            super().run()
        except Exception as error:
            self._report(error)

    def build_extensions(self):
        """Build all modules, and remove those that cannot be imported because the shared code is missing."""
        super().build_extensions()
        if SHARED_CODE in self.failed:
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        self.extensions = [one for one in self.extensions if Path(self.get_ext_fullpath(one.name)).exists()]

    def build_extension(self, extension):
        """Build one module, or say why not."""
        try:
            super().build_extension(extension)
        except Exception as error:
            self.failed.add(extension.name)
            self._report(error)

    @staticmethod
    def _report(error):
        print(f"kcli: the record loops are not compiled and will run interpreted, slower: {error}", file=sys.stderr)


def extensions():
    """The modules to compile, or none where Cython or the wish for it is missing."""
    modules = [path for path in COMPILED_MODULES if Path(path).exists()]
    if os.environ.get("KCLI_PURE_PYTHON") == "1" or not modules:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError as error:
        OptionalBuildExt._report(error)
        return []
    try:
        return compile_modules(cythonize, modules)
    except Exception as error:
        OptionalBuildExt._report(error)
        return []


def compile_modules(cythonize, modules):
    """The extensions of the modules, translated to C. Raises Cython's CompileError."""
    flags = [] if sys.platform == "win32" else ["-O3", "-g0"]
    return cythonize(
        [
            *(Extension(path.removesuffix(".py").replace("/", "."), [path], extra_compile_args=flags) for path in modules),
            Extension(SHARED_CODE, [SHARED_CODE.replace(".", "/") + ".c"], extra_compile_args=flags),
        ],
        shared_utility_qualified_name=SHARED_CODE,
        compiler_directives={
            "language_level": "3",
            "boundscheck": True,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "infer_types": False,
            "annotation_typing": False,
        },
        nthreads=os.cpu_count() or 1,
        quiet=True,
    )


# Cython's processes import this file again where they are not forked.
if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuildExt})
