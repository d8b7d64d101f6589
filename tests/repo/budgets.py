"""The budgets of the code: one table, with the definition of each count.

``docs/adr/0032-budgets.md`` says how a budget moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from antiphon.config import ServerConfig
from antiphon.option import options
from tests.repo.counts import (
    Classes,
    code_by_package,
    definitions,
    lines_of,
    locks,
    private_uses,
    short_and_used_once,
)
from tests.repo.frame_path import FRAME_PATH
from tests.repo.source import PRODUCT, TESTS, Source

PLACES: Final = "python -m tests.repo.report '{}' lists the places"

SEAM_VERBS: Final = (
    "acknowledge",
    "arm",
    "detach",
    "feed_padding",
    "note",
    "nudge",
    "prime",
    "push_text",
    "set_parameters",
)
"""What a front end asks of an engine for a session that has its row."""

BUDGETS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "antiphon": 1500,
        "antiphon.agent": 1000,
        "antiphon.audio": 1_700,
        "antiphon.backends": 9_800,
        "antiphon.canary": 250,
        "antiphon.engine": 4000,
        "antiphon.ipc": 1950,
        "antiphon.models": 3_600,
        "antiphon.protocol": 3_900,
        "antiphon.serve": 14_000,
        "antiphon.supervisor": 1400,
        "antiphon_client": 2950,
        "antiphon_quantize": 4_550,
        "antiphon_quantize.advice": 800,
        "antiphon_quantize.bench": 1700,
        "antiphon_quantize.reference": 350,
        "server": 42_700,
        "server, clients, quantize": 53_100,
        "own classes deeper than 2": 0,
        "protocols with one implementation": 0,
        "locks": 7,
        "private names in tests": 4,
        "private functions used once, under 8 lines": 201,
        "options": 52,
        "definitions of the seam's verbs": 19,
        "files on the path of a frame": 16,
        "definitions of one verb": 4,
        "depth of own classes": 2,
        "lines on the path of a frame": 5_850,
    }
)
"""The most of each. Lines, of code for a package and of all on the path, are rounded up to the next 50."""


def places(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Where each thing is that is counted by its places, by the names of BUDGETS."""
    product = [source for source in sources if source.path.startswith(PRODUCT)]
    tests = [source for source in sources if source.path.startswith(TESTS)]
    classes = Classes(product)
    return {
        "own classes deeper than 2": [f"{depth} {name}" for depth, name in classes.deep()],
        "protocols with one implementation": classes.needless_protocols(),
        "locks": locks(product),
        "private names in tests": private_uses(product, tests),
        "private functions used once, under 8 lines": short_and_used_once(product),
        "options": [info.key for info in options(ServerConfig).values()],
        "definitions of the seam's verbs": definitions(product, SEAM_VERBS),
        "files on the path of a frame": [*FRAME_PATH],
    }


def counted(sources: Sequence[Source], found: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """What is counted, by the names of BUDGETS; ``found`` are the places."""
    product = [source for source in sources if source.path.startswith(PRODUCT)]
    verbs = Counter(place.split()[-1] for place in found["definitions of the seam's verbs"])
    return {
        **code_by_package(product),
        **{name: len(where) for name, where in found.items()},
        "definitions of one verb": max(verbs.values(), default=0),
        "depth of own classes": max(
            (int(it.split()[0]) for it in found["own classes deeper than 2"]), default=2
        ),
        "lines on the path of a frame": lines_of(product, FRAME_PATH),
    }


def over_budget(counts: Mapping[str, int], budgets: Mapping[str, int] = BUDGETS) -> Iterator[str]:
    """What is larger than its budget or has none, a sentence each."""
    for name, count in counts.items():
        budget = budgets.get(name, 0)
        if count > budget:
            yield (
                f"{name}: {count} counted, {budget} in BUDGETS of tests/repo/budgets.py; make it smaller, or "
                f"raise the budget as docs/adr/0032-budgets.md says ({PLACES.format(name)})"
            )
    for name in budgets.keys() - counts.keys():
        yield f"{name}: nothing is counted for it; delete it from BUDGETS of tests/repo/budgets.py"


def verbs_that_are_gone(found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The verbs of the seam that no function has, a sentence each."""
    defined = {place.split()[-1] for place in found["definitions of the seam's verbs"]}
    for verb in SEAM_VERBS:
        if verb not in defined:
            yield f"SEAM_VERBS of tests/repo/budgets.py names {verb}, which no function of the seam has"


def table(counts: Mapping[str, int], budgets: Mapping[str, int] = BUDGETS) -> Iterator[str]:
    """Each count beside its budget, a line each."""
    for name, count in counts.items():
        yield f"{count:7} of {budgets.get(name, 0):6}  {name}"
