"""`kcli to-parquet` as tests run it: words to arguments, the last line of its summary, the type of the fixture `run`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from kcli.commands import to_parquet

# Words -> (exit code, stdout, stderr).
Run = Callable[..., tuple[int, str, str]]
# The last line has the time, so that no test knows the whole of it.
TOTALS_LINE = re.compile(
    r"^[0-9.]+ [KMG]?i?B of segments read in [0-9.]+ s(; .* has [0-9,]+ Parquet files?, [^\n]+)?\n\Z", re.MULTILINE
)


def parse(*words: str) -> argparse.Namespace:
    """The arguments of a command line."""
    parser = argparse.ArgumentParser()
    to_parquet.add_arguments(parser)
    return parser.parse_args(words)
