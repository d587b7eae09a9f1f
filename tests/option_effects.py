"""Checks that each option of a command has an effect, alone and beside others, or is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from kcli.commands.app import build_parser
from kcli.commands.output import EXIT_CANNOT_RUN


def check_differences(
    command: str,
    choices: dict[str, list[str]],
    observe: Callable[[list[str]], tuple[int, object]],
    *,
    pairs: int,
    without: Collection[str] = (),
) -> None:
    """Give a command each option, and `pairs` of them: what comes out differs from that with one less, or the line is refused.

    `choices` has the words of each option: all that the parser has, but those in `without`. `observe` returns the exit code,
    EXIT_CANNOT_RUN if the line is refused, and what came out.
    """
    options = {one.option_strings[0] for one in build_parser(command)._actions if one.option_strings} - {"-h", *without}
    assert options == {name for name in choices if name.startswith("-")}
    dice = random.Random(command)
    outcomes: dict[tuple[str, ...], tuple[int, object]] = {}

    def outcome(names: tuple[str, ...]) -> tuple[int, object]:
        if names not in outcomes:
            outcomes[names] = observe([word for name in names for word in choices[name]])
        return outcomes[names]

    drawn = [(name,) for name in choices] + [tuple(sorted(dice.sample(sorted(choices), 2))) for _ in range(pairs)]
    idle = [
        f"{' '.join(names)}: {name} has no effect"
        for names in drawn
        for name in names
        if outcome(names)[0] != EXIT_CANNOT_RUN and outcome(names) == outcome(tuple(one for one in names if one != name))
    ]
    assert not idle, "\n".join(idle)
