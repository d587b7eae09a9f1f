"""Tables for people: columns in line, two blanks apart, whatever width the characters have.

Cells must be printable already (terminal_text.escape). A cell beyond MAX_CELL_COLUMNS is cut, so that one long name cannot
blow up every row. A column in which no row has anything to say (its cells empty) is left out, where asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcli.inspect.renderers.terminal_text import fitted, width

MAX_CELL_COLUMNS = 160


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: frozenset[str] | None = None, drop_empty: bool = False
) -> Iterator[str]:
    """The names of the columns, then the rows, two blanks in; no trailing blanks.

    The columns in `left` are to the left, the others to the right; None: the first one is.
    """
    left = frozenset(columns[:1]) if left is None else left
    cells = [[fitted(text, MAX_CELL_COLUMNS) for text in row] for row in rows]
    kept = [slot for slot in range(len(columns)) if not drop_empty or any(row[slot] for row in cells)]
    widths = {slot: max(width(row[slot]) for row in ([*columns], *cells)) for slot in kept}
    for row in ([*columns], *cells):
        parts = []
        for slot in kept:
            gap = " " * (widths[slot] - width(row[slot]))
            parts.append(row[slot] + gap if columns[slot] in left else gap + row[slot])
        yield f"  {'  '.join(parts)}".rstrip()
