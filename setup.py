"""Compiles the loops over records if there is a C compiler; otherwise the same sources are interpreted.

The sources are plain Python; their C types are in .pxd files next to them (Cython's pure Python mode). A failed build is
reported and skipped; `kcli --version` says whether the loops are compiled. KCLI_PURE_PYTHON=1 skips the build. Cython and
the C compiler use all cores.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED_MODULES = [
    "kcli/format/record_scan.py",
    "kcli/format/batch_header.py",
    "kcli/format/batch_scan.py",
    "kcli/format/record_copy.py",
    "kcli/format/batch_join.py",
    "kcli/format/murmur2.py",
    "kcli/format/memory_records_builder.py",
    "kcli/log/cleaner/offset_map.py",
    "kcli/log/cleaner/transaction_metadata.py",
    "kcli/log/cleaner/batch_reader.py",
    "kcli/log/cleaner/retained_offsets.py",
    "kcli/log/cleaner/offset_map_builder.py",
    "kcli/log/cleaner/batch_filter.py",
    "kcli/inspect/dumping/text_buffer.py",
    "kcli/inspect/dumping/record_lines.py",
    "kcli/inspect/dumping/batch_lines.py",
    "kcli/inspect/dumping/record_rows.py",
    "kcli/format/arrow_columns.py",
    "kcli/client/consumer/consumer_record.py",
    "kcli/client/consumer/arrow_records.py",
    "kcli/client/consumer/completed_fetch.py",
    "kcli/client/producer/partitioner.py",
    "kcli/client/producer/producer_batch.py",
    "kcli/client/producer/topic_queues.py",
    "kcli/client/producer/record_accumulator.py",
    "kcli/client/producer/record_appender.py",
    "kcli/client/producer/arrow_column.py",
    "kcli/client/producer/arrow_appender.py",
    "kcli/client/shell/record_sender.py",
]
# Code that Cython would repeat in every module, mainly for memory views; with this module a build takes a third of the time.
SHARED_CODE = "kcli.format.cython_shared"


class OptionalBuildExt(build_ext):
    """Builds all modules on all cores; a module that cannot be compiled is interpreted."""

    failed: set[str]

    def finalize_options(self):
        """Compile one module per core at a time, unless --parallel is given."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        """Build all modules, and report errors."""
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
        """Build one module, and report an error."""
        try:
            super().build_extension(extension)
        except Exception as error:
            self.failed.add(extension.name)
            self._report(error)

    @staticmethod
    def _report(error):
        print(f"kcli: the record loops are not compiled and will run interpreted, slower: {error}", file=sys.stderr)


def extensions():
    """Return the modules to compile; none without Cython or with KCLI_PURE_PYTHON=1."""
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
    """Translate the modules to C, and return their extensions. Raises Cython's CompileError."""
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


# Cython's worker processes import this file again if they are not forked.
if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuildExt})
