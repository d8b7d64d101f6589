"""The checks of structure: findings in constructed modules, and none in the product."""

from __future__ import annotations

from pathlib import Path

from tests.repo.glossary import faults_of_words
from tests.repo.make import run_make
from tests.repo.report import faults, faults_of_lab, faults_of_pages, lengths
from tests.repo.source import read_sources
from tests.repo.structure import circles, names_used_twice, read_modules
from tests.repo.tracked import ROOT


def _modules(folder: Path, **sources: str) -> list[str]:
    for name, source in sources.items():
        path = folder / "antiphon" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return [f"antiphon/{name}.py" for name in sources]


def test_a_circle_is_found_through_types_and_functions(tmp_path: Path) -> None:
    paths = _modules(
        tmp_path,
        a="from antiphon.b import B\n",
        b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from antiphon import c\n",
        c="def f():\n    import antiphon.a\n",
        d="import antiphon.a\n",
    )
    modules = read_modules(read_sources(tmp_path, paths))
    assert circles(modules) == [["antiphon.a", "antiphon.b", "antiphon.c"]]
    said = list(faults(modules))
    assert said[0] == "these import each other in a circle: antiphon.a, antiphon.b, antiphon.c"
    assert said[1].startswith("antiphon/c.py:2 imports antiphon.a inside a function; move it to the top")


def test_an_import_by_name_and_one_of_the_lab_are_found(tmp_path: Path) -> None:
    paths = _modules(
        tmp_path,
        a="from importlib import import_module\nimport_module('antiphon.b')\n",
        b="import lab.tools\n",
    )
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "tools.py").write_text("import antiphon.a\n")
    modules = read_modules(read_sources(tmp_path, [*paths, "lab/tools.py"]))
    assert list(faults(modules)) == ["antiphon/a.py:2 imports by name; use an import statement"]
    assert list(faults_of_lab(modules)) == ["antiphon/b.py:1 imports lab.tools; only the lab imports the lab"]


def test_long_functions_and_names_used_twice_are_reported(tmp_path: Path) -> None:
    long = "def f():\n" + "    pass\n" * 60
    paths = _modules(tmp_path, a="class A: ...\n" + long, b="class A: ...\nclass _B: ...\n")
    modules = read_modules(read_sources(tmp_path, paths))
    assert names_used_twice(modules) == {"A": ["antiphon/a.py", "antiphon/b.py"]}
    assert list(faults(modules)) == [
        "class A is defined in antiphon/a.py, antiphon/b.py; give each a name of its own, or the reason in "
        "SAME of tests/repo/report.py"
    ]
    assert list(lengths(modules)) == ["   61 antiphon/a.py: f(): no reason is given"]


def test_prose_is_at_most_100_columns_wide(tmp_path: Path) -> None:
    code = "`" + "x" * 120 + "`"
    (tmp_path / "page.md").write_text(f"# {'x' * 120}\n\n| {'x' * 120} |\n\nshort {code}\n\n{'x' * 101}\n")
    assert list(faults_of_pages(tmp_path)) == ["docs/page.md has 1 lines of prose over 100 columns"]


def test_a_word_is_defined_once(tmp_path: Path) -> None:
    (tmp_path / "glossary.md").write_text("**row**: A place.\n\n**row**: Another.\n\n**tick**: A step.\n")
    (tmp_path / "page.md").write_text("A **tick** is a step.\n\n- **Tick**: a step.\n")
    assert list(faults_of_words(tmp_path)) == [
        "docs/glossary.md defines 'row' 2 times",
        f"{tmp_path.name}/page.md defines 'tick', which docs/glossary.md defines",
    ]


def test_make_test_checks_the_product_by_the_report() -> None:
    """What these checks find in the product is found once, there."""
    for verb in ("check", "test"):
        assert "-m tests.repo.report\n" in run_make("--dry-run", verb, cwd=ROOT).stdout
