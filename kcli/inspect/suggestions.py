"""Suggestions for a mistyped name of a command, a topic or a group."""

from __future__ import annotations

from collections.abc import Iterable

MOST_SUGGESTIONS = 3


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'a' or 'b'?" with the names that are most like `word`, or "" if none is like it."""
    from difflib import get_close_matches  # late: only mistakes need it, and the import takes 5 ms

    names = list(known)
    begins = [name for name in names if word and name.startswith(word)]
    like = get_close_matches(word.lower(), {name.lower(): name for name in names}, MOST_SUGGESTIONS)
    found = dict.fromkeys(begins[:MOST_SUGGESTIONS] + [name for lower in like for name in names if name.lower() == lower])
    quoted = [repr(name) for name in list(found)[:MOST_SUGGESTIONS]]
    return f"; did you mean {' or '.join(quoted)}?" if quoted else ""
