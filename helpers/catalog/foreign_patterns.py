"""Regular expressions out of somebody's config.json: compiled only if no name can keep them busy.

Python's matcher tries one way after the other; `(a+)+$` has 2^60 ways for a name of sixty letters. So what multiplies
ways is counted before anything runs: a repeated group may not hold a choice, and all choices together may not be many.
Then the expression is tried on names as checkpoints have them.
"""

from __future__ import annotations

import re
from functools import cache
from math import comb
from time import perf_counter

MOST_LETTERS = 4096
NAME_LETTERS = 64  # of a module's name
MOST_WAYS = 10**8
MOST_SECONDS = 1e-3  # for a name; a real pattern takes a hundredth of it
TRIES = 3
# A class, an escape, a group's beginning with what it says of itself, its end, an alternative, a repetition
_TOKEN = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|\((?:\?(?:[:=!>]|<[=!]|P<\w+>|P=|[aiLmsux-]+[:)]|\())?|\)|\||(?:[*+?]|\{\d*,?\d*\})[?+]?",
    re.DOTALL,
)
_PROBES = (
    "model.layers.10.self_attn.q_proj",
    "model.language_model.layers.10.mlp.experts.100.gate_up_proj",
    "a" * NAME_LETTERS,
)


@cache
def compiled(text: str) -> re.Pattern[str]:
    """The expression; ValueError for one that is none, or that some name could keep busy.

    >>> compiled(r".*mlp\\.(gate|up)_proj").match("model.layers.0.mlp.up_proj") is not None
    True
    """
    if len(text) > MOST_LETTERS:
        raise ValueError(f"a pattern of {len(text):,} letters")
    try:
        found = re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise ValueError(f"a pattern {_shown(text)} that is no regular expression") from None
    if _ways(text) > MOST_WAYS or any(_seconds(found, name) > MOST_SECONDS for name in _PROBES):
        raise ValueError(f"a pattern {_shown(text)} that some name would keep busy for long")
    return found


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _ways(text: str) -> int:
    """How many ways a name can be divided among what the expression leaves open, at most; too many for nested ones."""
    lengths, twofold = 0, 0  # repetitions of any number, and choices of two
    open_groups = [False]  # whether a choice is inside
    for match in _TOKEN.finditer(text):
        token, after = match.group(), text[match.end() : match.end() + 1]
        if token in ("(?P=", "(?(") or re.fullmatch(r"\\[1-9]", token):  # a reference to what was found before
            return MOST_WAYS + 1
        if token.startswith("(") and not token.endswith(")"):
            open_groups.append(False)
        elif token == ")" and len(open_groups) > 1:
            inside = open_groups.pop()
            if inside and after and after in "*+{":
                return MOST_WAYS + 1
            open_groups[-1] |= inside
        elif token == "|":
            twofold, open_groups[-1] = twofold + (not open_groups[-1]), True
        elif token[0] in "*+{":
            lengths, open_groups[-1] = lengths + 1, True
        elif token[0] == "?":
            twofold, open_groups[-1] = twofold + 1, True
    return comb(NAME_LETTERS + lengths, lengths) * 2**twofold


def _seconds(expression: re.Pattern[str], name: str) -> float:
    """The least of a few tries: a machine may be busy with something else."""
    best = float("inf")
    for _ in range(TRIES):
        start = perf_counter()
        expression.match(name)
        best = min(best, perf_counter() - start)
        if best <= MOST_SECONDS:
            break
    return best
