"""The table of docs/engine.md has every kind of model, with its traits."""

from __future__ import annotations

from antiphon.models.spec import LIVE_KINDS, PipelineKind
from tests.repo.tracked import ROOT


def row(kind: PipelineKind) -> str:
    marks = ["yes" if it else "no" for it in (kind.is_live, kind.has_deadlines, kind.has_heads)]
    takes, gives = ("audio" if it else "text" for it in (kind.takes_audio, kind.gives_audio))
    return f"| {' | '.join((f'`{kind}`', takes, gives, *marks))} |"


def test_the_engines_page_has_every_kind() -> None:
    section = (
        (ROOT / "docs" / "engine.md").read_text().partition("## Kinds of model\n")[2].partition("\n## ")[0]
    )
    assert [line for line in section.splitlines() if line.startswith("| `")] == [
        row(it) for it in PipelineKind
    ]


def test_a_kind_is_its_name_wherever_it_goes() -> None:
    assert [PipelineKind(kind.value) for kind in PipelineKind] == list(PipelineKind)
    assert LIVE_KINDS == (PipelineKind.DUPLEX, PipelineKind.CODEC)  # the order of "no duplex or codec model"
    assert {kind: kind.codec_passes for kind in PipelineKind} == {"codec": 2, "duplex": 2, "stt": 1, "tts": 1}
