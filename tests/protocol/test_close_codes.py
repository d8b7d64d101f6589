"""The reference explains every close code."""

from __future__ import annotations

import re

from antiphon.protocol.close_codes import CloseCode
from tests.repo.tracked import ROOT


def test_the_reference_explains_every_code() -> None:
    section = (ROOT / "docs" / "protocol.md").read_text().partition("### Close codes")[2].partition("###")[0]
    codes = re.findall(r"^\| (\d{4}) \| .+ \|$", section, re.MULTILINE)
    assert codes == [str(int(code)) for code in CloseCode]
