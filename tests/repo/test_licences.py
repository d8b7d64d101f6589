"""THIRD_PARTY.md names the licence of every package that pyproject.toml installs for a user."""

from __future__ import annotations

import re
import tomllib

from tests.repo.tracked import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ROW = re.compile(r"^\| ([\w.-]+)(?: \(PyAV\))? \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
TEXT = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}


def test_every_package_has_a_licence_and_its_extras() -> None:
    rows = {name: (licence, note) for name, licence, note in ROW.findall(TEXT) if name != "package"}
    base = names(PROJECT["dependencies"])
    extras = {
        extra: names(found) for extra, found in PROJECT["optional-dependencies"].items() if extra != "dev"
    }
    programs = {"espeak-ng", "flite", "RHVoice", "program"}
    assert set(rows) - programs == base.union(*extras.values())
    for name in set(rows) - programs - base:
        said = set(re.findall(r"`(\w+)`", rows[name][1]))
        assert said == {extra for extra, found in extras.items() if name in found}, name


def test_every_program_that_trained_the_voices_has_its_terms() -> None:
    _, _, voices = TEXT.partition("## Voices behind")
    for program in ("espeak-ng", "flite", "festival", "RHVoice", "SVOX Pico"):
        assert re.search(rf"^\| {program}[^|]*\| [^|]+ \|", voices, re.MULTILINE), program
