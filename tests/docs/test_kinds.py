"""The table of docs/engine.md has every kind of model, with its traits and its paths."""

from __future__ import annotations

import re

from antiphon.models.spec import LIVE_KINDS, PipelineKind
from antiphon.serve.routes.kinds import AGENT_ROUTES, ROUTES
from antiphon.serve.routes.realtime import PATH as REALTIME
from tests.repo.tracked import ROOT


def row(kind: PipelineKind) -> str:
    marks = ["yes" if it else "no" for it in (kind.is_live, kind.has_deadlines, kind.has_heads)]
    takes, gives = ("audio" if it else "text" for it in (kind.takes_audio, kind.gives_audio))
    paths = ", ".join(f"`{path}`" for path in dict.fromkeys(route.path for route in ROUTES[kind]))
    return f"| {' | '.join((f'`{kind}`', takes, gives, *marks, paths))} |"


def test_the_engines_page_has_every_kind() -> None:
    section = (
        (ROOT / "docs" / "engine.md").read_text().partition("## Kinds of model\n")[2].partition("\n## ")[0]
    )
    assert [line for line in section.splitlines() if line.startswith("| `")] == [
        row(it) for it in PipelineKind
    ]


def test_the_engines_page_has_the_paths_of_agents() -> None:
    routes = [route for routes in (*ROUTES.values(), AGENT_ROUTES) for route in routes]
    paths = {route.path for route in routes if route.has_agents and "{" not in route.path}
    page = (ROOT / "docs" / "engine.md").read_text()
    paragraph = page.partition("A [voice agent](agent.md) has no kind")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(/[^`]+)`", paragraph)) == paths | {REALTIME}  # which looks for agents itself


def test_a_kind_is_its_name_wherever_it_goes() -> None:
    assert [PipelineKind(kind.value) for kind in PipelineKind] == list(PipelineKind)
    assert LIVE_KINDS == (PipelineKind.DUPLEX, PipelineKind.CODEC)  # the order of "no duplex or codec model"
    assert {kind: kind.codec_passes for kind in PipelineKind} == {"codec": 2, "duplex": 2, "stt": 1, "tts": 1}
