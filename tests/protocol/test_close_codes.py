"""Every close code has one explanation, and the reference repeats it word for word."""

from __future__ import annotations

import re

from antiphon.protocol.close_codes import EXPLANATIONS, CloseCode
from tests.repo.tracked import ROOT


def test_the_reference_explains_every_code() -> None:
    section = (ROOT / "docs" / "protocol.md").read_text().partition("### Close codes")[2].partition("###")[0]
    rows = re.findall(r"^\| (\d{4}) \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(str(int(code)), EXPLANATIONS[code]) for code in CloseCode]
