"""The modules that Cython may have compiled, as plain Python: their twins in tests that want both to do the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def interpreted(installed: ModuleType, **replaced: ModuleType) -> ModuleType:
    """A module of its own from the source beside `installed`; `replaced` are modules that it is to use."""
    name = installed.__name__.rpartition(".")[2]
    assert installed.__file__ is not None
    source = Path(installed.__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for attribute, replacement in replaced.items():
        setattr(module, attribute, replacement)
    return module
