"""`kcli to-parquet` as tests run it: words to arguments, and the type of the fixture `run`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from kcli.commands import to_parquet

# Words -> (exit code, stdout, stderr).
Run = Callable[..., tuple[int, str, str]]


def parse(*words: str) -> argparse.Namespace:
    """The arguments of a command line."""
    parser = argparse.ArgumentParser()
    to_parquet.add_arguments(parser)
    return parser.parse_args(words)
