"""The workflows of the code host: their commands exist, and a release publishes its build."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.repo.make import run_make
from tests.repo.tracked import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
ACTION = re.compile(r"(actions|pypa)/[\w-]+@(v\d+|release/v\d+)")
STEP_KEYS = {"name", "uses", "with", "run", "if", "env"}
EXPRESSION = re.compile(r"\$\{\{ *([\w.]+)")
CONTEXTS = {"github", "matrix"}


def read(path: Path) -> dict[str, Any]:
    """A workflow; the key ``on`` is true in YAML 1.1."""
    values: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in values.items()}


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in read(path)["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_bounded_and_names_what_there_is(path: Path) -> None:
    workflow = read(path)
    assert {"name", "on", "permissions", "jobs"} == set(workflow)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(workflow["jobs"])
    for step in steps(path):
        assert set(step) <= STEP_KEYS
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert ACTION.fullmatch(step["uses"])
    for name in EXPRESSION.findall(path.read_text()):
        assert name.split(".")[0] in CONTEXTS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_steps_run_is_there(path: Path, tmp_path: Path) -> None:
    for script in (step["run"] for step in steps(path) if "run" in step):
        parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert parsed.returncode == 0, parsed.stderr
        for verb in re.findall(r"\bmake ([\w-]+)", script):
            run = run_make("--dry-run", f"VENV={tmp_path}", verb, cwd=ROOT)
            assert run.returncode == 0, run.stderr
        for module in re.findall(r"python -m (lab[\w.]+)", script):
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
        for named in re.findall(r"(?:deploy|tests|lab)/[\w./-]+\.(?:py|Dockerfile)", script):
            assert (ROOT / named).is_file()


def test_every_supported_python_is_tested_on_linux_and_macos() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [words.split(" :: ")[-1] for words in project["classifiers"] if ":: 3." in words]
    matrix = read(FOLDER / "tests.yml")["jobs"]["fast"]["strategy"]["matrix"]
    assert matrix["python"] == said
    assert {name.split("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}


def test_a_release_is_tried_before_it_is_published() -> None:
    jobs = read(FOLDER / "release.yml")["jobs"]
    assert set(jobs["publish-weights"]["needs"]) == {"build", "images"}
    assert (jobs["publish"]["needs"], jobs["notes"]["needs"]) == ("publish-weights", "publish")
    for name in ("publish-weights", "publish", "notes"):
        assert jobs[name]["if"] == "github.ref_type == 'tag'"
    assert "secrets." not in (FOLDER / "release.yml").read_text()
    scripts = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert any(script.startswith("make try-release") for script in scripts)
    for kind in {entry["file"] for entry in jobs["images"]["strategy"]["matrix"]["include"]}:
        assert (ROOT / "deploy" / "docker" / f"{kind}.Dockerfile").is_file()


@pytest.mark.parametrize(
    ("job", "environment", "wheels"),
    [
        ("publish-weights", "release-weights", ["antiphon_weights-1.0-py3-none-any.whl"]),
        ("publish", "release", ["antiphon-1.0-py3-none-any.whl"]),
    ],
)
def test_each_package_has_a_publisher_of_its_own(
    job: str, environment: str, wheels: list[str], tmp_path: Path
) -> None:
    """Pending publishers of the package index must differ; a job that publishes may do nothing else."""
    found = read(FOLDER / "release.yml")["jobs"][job]
    assert (found["environment"], found["permissions"]) == (environment, {"id-token": "write"})
    _, script, publish = found["steps"]
    assert publish["with"] == {"packages-dir": "upload", "skip-existing": True}
    dist = tmp_path / "dist"
    dist.mkdir()
    for name in ("antiphon-1.0-py3-none-any.whl", "antiphon_weights-1.0-py3-none-any.whl"):
        (dist / name).write_text(name)
    subprocess.run("sha256sum * > SHA256SUMS", shell=True, cwd=dist, check=True)
    subprocess.run(["bash", "-e", "-c", script["run"]], cwd=tmp_path, check=True)
    assert [it.name for it in (tmp_path / "upload").iterdir()] == wheels


def test_the_notes_of_a_release_are_its_section_of_the_changelog(tmp_path: Path) -> None:
    job = read(FOLDER / "release.yml")["jobs"]["notes"]
    assert job["permissions"] == {"contents": "write"}
    (cut,) = (step["run"] for step in job["steps"] if "changelog" in step.get("name", ""))
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [0.2.0] - 2026-12-02\nnew\n\n### Fixed\n- it\n\n## [0.1.0] - 2026-12-01\nold\n"
    )
    subprocess.run(
        ["bash", "-e", "-c", cut],
        cwd=tmp_path,
        env={"GITHUB_REF_NAME": "v0.2.0", "PATH": "/usr/bin:/bin"},
        check=True,
    )
    assert (tmp_path / "notes.md").read_text() == "new\n\n### Fixed\n- it\n\n"


@pytest.mark.parametrize("tag", ["v0.1.0", "v9.9.9"])
def test_a_tag_that_is_not_the_version_is_refused(tag: str, tmp_path: Path) -> None:
    """The step as the host runs it, over the files as they are when the changelog has a day."""
    (check,) = (
        step["run"] for step in steps(FOLDER / "release.yml") if step.get("name") == "The tag is the version"
    )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (tmp_path / "weights").mkdir()
    for name in ("pyproject.toml", "weights/pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "CHANGELOG.md").write_text(f"## [{version}] - 2026-12-01\n")
    run = subprocess.run(
        ["bash", "-e", "-c", check],
        cwd=tmp_path,
        env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert (run.returncode == 0) == (tag == f"v{version}")
