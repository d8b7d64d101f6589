"""The page at /: a strict content policy, and accessibility."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from antiphon.models.catalog import load_checkpoint
from antiphon.serve.routes.static import StaticFiles

STATIC = Path(__file__).parents[2] / "web" / "static"
PAGES = sorted(STATIC.glob("*.html"))
CLIPS = STATIC.parents[1] / "clients" / "antiphon_client" / "clips"
MAX_WEIGHT_BYTES = 85_000
"""Of what every visitor fetches, without those ``ON_DEMAND``."""
ON_DEMAND = ("questions/", "peer.js")
"""A recorded question, and a call by WebRTC, come when they are chosen."""


class Elements(HTMLParser):
    """Collects every start tag with its attributes, and the page's text outside tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        self.text[self._open] = self.text.get(self._open, "") + data.strip()


def luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance of ``#rrggbb``."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


def read_page(path: Path) -> Elements:
    elements = Elements()
    elements.feed(path.read_text())
    return elements


def test_there_is_a_page() -> None:
    assert STATIC / "index.html" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_nothing_is_inline_and_nothing_comes_from_elsewhere(page: Path) -> None:
    elements = read_page(page)
    assert "style" not in elements.text
    assert not elements.text.get("script")
    for tag, attributes in elements.tags:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href"):
            link = attributes.get(name) or ""
            assert "//" not in link, f"{tag} {name}={link}"
        if tag in {"link", "script", "img"}:
            assert (STATIC / (attributes.get("href") or attributes.get("src") or "")).is_file(), attributes


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_everybody_can_read_it(page: Path) -> None:
    elements = read_page(page)
    tags = [tag for tag, _ in elements.tags]
    attributes = dict(elements.tags)
    ids = [values["id"] for _, values in elements.tags if "id" in values]
    assert attributes["html"].get("lang") == "en"
    assert elements.text.get("title")
    assert tags.count("h1") == tags.count("main") == 1
    assert "width=device-width" in str(
        [values.get("content") for tag, values in elements.tags if tag == "meta"]
    )
    assert len(ids) == len(set(ids))
    for tag, values in elements.tags:
        assert tag != "img" or values.get("alt") is not None
        assert tag != "th" or values.get("scope") in {"row", "col"}
        assert values.get("aria-labelledby") is None or values["aria-labelledby"] in ids


def test_every_text_stands_out_from_its_ground_by_light_and_in_the_dark() -> None:
    schemes = re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text(), re.S)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", scheme))
        pairs = [
            (ink, ground)
            for ground in ("paper", "sheet")
            for ink in ("ink", "quiet", "you", "reply", "trouble")
        ]
        for ink, ground in [*pairs, ("button-ink", "button")]:
            found = contrast(colours[ink], colours[ground])
            assert found >= 4.5, f"{ink} {colours[ink]} on {ground} {colours[ground]}: {found:.2f}"


def test_everything_together_is_light() -> None:
    files = StaticFiles(STATIC)
    names = [path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()]
    names = [name for name in names if not name.startswith(ON_DEMAND)]
    assets = {name: files.find(name) for name in names}
    weights = {name: len(asset.gzipped or asset.body) for name, asset in assets.items()}
    assert sum(weights.values()) < MAX_WEIGHT_BYTES, weights


def test_comments_are_not_sent_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    text = """// one
/**
 * two, a * and a /
 */
const three = "// not one"; // nor this
  /* four */
const five = `
  6 // seven`;
"""
    for name in ("index.html", "main.js"):
        (tmp_path / name).write_text(text)
    sent = StaticFiles(tmp_path).find("main.js").body.decode()
    left = ["", "", "", "", 'const three = "// not one"; // nor this', "", "const five = `", "  6 // seven`;"]
    assert sent.splitlines() == left
    assert StaticFiles(tmp_path).find("index.html").body.decode() == text


def test_no_module_takes_anything_from_elsewhere() -> None:
    for path in STATIC.rglob("*.js"):
        text = path.read_text()
        for name in re.findall(r"(?:from|import) \"([^\"]+)\"", text):
            assert (path.parent / name).is_file(), f"{path.name}: {name}"
        assert "innerHTML" not in text, path.name
        assert "eval(" not in text, path.name


def test_every_module_is_asked_for_at_once() -> None:
    needed, waiting = set[str](), ["main.js"]
    while waiting:
        name = waiting.pop()
        text = (STATIC / name).read_text()
        found = {str(it) for it in re.findall(r"^import [^;]*from \"\./([^\"]+)\"", text, re.M)}
        waiting += found - needed
        needed |= found
    links = [values for tag, values in read_page(STATIC / "index.html").tags if tag == "link"]
    assert needed == {it["href"] for it in links if it.get("rel") == "modulepreload"}


def test_the_recorded_questions_are_clips_of_the_clients_and_the_model_offers_them() -> None:
    recorded = {path.stem: path.read_bytes() for path in (STATIC / "questions").iterdir()}
    clips = {path.stem.removeprefix("question-"): path for path in CLIPS.glob("question-*.ogg")}
    assert recorded == {name: clips[name].read_bytes() for name in recorded}
    table = dict(re.findall(r'"([a-z ]+)": "(\w+)"', (STATIC / "questions.js").read_text()))
    assert set(table.values()) == set(recorded)
    manifest = load_checkpoint("tiny").manifest
    assert manifest is not None
    asked = {re.sub("[^a-z ]", "", example.lower()) for example in manifest.examples}
    assert asked == set(table)
