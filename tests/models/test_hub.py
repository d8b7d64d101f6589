"""Models from a hub: the real client in a separate process, with a fake hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError, MissingExtraError
from antiphon.models.catalog import load_checkpoint
from tests.models.fake_hub import COMMIT, Hub, digest, serve
from tests.support.make_checkpoint import make_checkpoint

NEEDED = ["config.json", "mimi.safetensors", "mimi_config.json", "model.safetensors", "tokenizer.model"]
NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens

LOAD = """
import json, sys
from antiphon.errors import AntiphonError
from antiphon.models.catalog import load_checkpoint
for ref in sys.argv[1:]:
    try:
        found = load_checkpoint(ref)
        files = {role: str(path) for role, path in found.files.items()}
        answer = {"revision": found.revision, "name": found.spec.name, "ref": found.ref, "files": files}
    except AntiphonError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer))
"""


def load(*refs: str, home: Path, url: str = NOWHERE, offline: bool = False) -> list[dict[str, Any]]:
    """Load each ref in a fresh process (the client reads its environment once, when it is imported)."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment |= {"HF_HUB_OFFLINE": "1"} if offline else {}
    command = [sys.executable, "-c", LOAD, *refs]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=500
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub's folder: a whole model, one that borrows its Mimi, two whose files lie outside, a gated one."""
    root = tmp_path_factory.mktemp("hub")
    whole = make_checkpoint(root / "owner" / "whole")
    (whole / "README.md").write_text("not needed")
    config = json.loads((whole / "config.json").read_text())
    for name, mimi in (
        ("borrowed", "hf://owner/whole/mimi.safetensors"),
        ("pinned", f"hf://owner/whole/mimi.safetensors@{COMMIT}"),
        ("mispinned", "hf://owner/whole/mimi.safetensors@v9"),
        ("escaping", "../whole/mimi.safetensors"),
        ("local", "file:///etc/passwd"),
        ("incomplete", "lost.safetensors"),
    ):
        folder = root / "owner" / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | {"mimi_name": mimi}))
        for needed in ("model.safetensors", "tokenizer.model", "mimi_config.json"):
            shutil.copyfile(whole / needed, folder / needed)
    (root / "owner" / "gated").mkdir()
    (root / "owner" / "gated" / "config.json").write_text("{}")
    return root


@pytest.fixture
def hub(repositories: Path) -> Iterator[Hub]:
    with serve(Hub(repositories, gated=frozenset({"owner/gated"}))) as running:
        yield running


def test_model_is_pinned_and_only_what_it_needs_is_fetched(hub: Hub, tmp_path: Path) -> None:
    (found,) = load("hf://owner/whole", home=tmp_path, url=hub.url)
    assert found["revision"] == COMMIT
    assert (found["name"], found["ref"]) == ("whole", "hf://owner/whole")
    assert all(COMMIT in path for path in found["files"].values())
    assert hub.fetched[0] == "owner/whole/config.json"
    assert sorted(hub.fetched) == [f"owner/whole/{name}" for name in NEEDED]


def test_fetched_model_loads_again_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    online = load("hf://owner/whole", "hf://owner/borrowed", home=tmp_path, url=hub.url)
    offline = load("hf://owner/whole", "hf://owner/borrowed", home=tmp_path, offline=True)
    unreachable = load("hf://owner/whole", f"hf://owner/whole@{COMMIT}", home=tmp_path)
    assert offline == online
    assert unreachable[0] == online[0]
    assert unreachable[1]["files"] == online[0]["files"]


def test_file_of_another_repository_is_fetched_from_there(hub: Hub, tmp_path: Path) -> None:
    found, pinned = load("hf://owner/borrowed", "hf://owner/pinned", home=tmp_path, url=hub.url)
    assert "models--owner--whole" in found["files"]["mimi"]
    assert pinned["files"]["mimi"] == found["files"]["mimi"]
    assert "models--owner--borrowed" in found["files"]["lm"]
    assert "owner/whole/mimi.safetensors" in hub.fetched


def test_failures_say_what_to_do(hub: Hub, tmp_path: Path) -> None:
    expected = {
        "hf://owner/whole@v9": ("CheckpointNotFoundError", "owner/whole has no revision 'v9'"),
        "hf://owner/mispinned": ("CheckpointNotFoundError", "owner/whole has no revision 'v9'"),
        "hf://owner/none": (
            "CheckpointNotFoundError",
            "the hub has no repository 'owner/none' that you may read; if it is private, run: hf auth login",
        ),
        "hf://owner/gated": (
            "CheckpointNotFoundError",
            "owner/gated is gated: accept its terms on its page on the hub, then run: hf auth login",
        ),
        "hf://owner/escaping": (
            "CheckpointFormatError",
            "owner/escaping names the file '../whole/mimi.safetensors', which lies outside of it",
        ),
        "hf://owner/local": (
            "CheckpointFormatError",
            "owner/local names the file 'file:///etc/passwd', which lies outside of it",
        ),
        "hf://owner/incomplete": (
            "CheckpointNotFoundError",
            f"owner/incomplete at {COMMIT} has no file 'lost.safetensors', which its configuration names",
        ),
    }
    answers = load(*expected, home=tmp_path, url=hub.url)
    assert [(answer["error"], answer["message"]) for answer in answers] == list(expected.values())


@pytest.mark.parametrize("offline", [True, False])
def test_unreachable_hub_names_the_command_for_later(offline: bool, tmp_path: Path) -> None:
    (answer,) = load("hf://owner/whole", home=tmp_path, offline=offline)
    assert answer["error"] == "CheckpointNotFoundError"
    assert answer["message"].startswith(
        "hf://owner/whole is not in the cache, and the hub cannot be reached ("
    )
    assert answer["message"].endswith("); when online, run: hf download owner/whole")


def fill_cache(home: Path, repository: Path, names: list[str]) -> None:
    """Lay out a repository the way the hub's client does: blobs, snapshots of links to them, refs."""
    root = home / "hub" / f"models--owner--{repository.name}"
    snapshot = root / "snapshots" / COMMIT
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    for name in names:
        blob = digest(repository / name)
        shutil.copyfile(repository / name, root / "blobs" / blob)
        (snapshot / name).symlink_to(Path("../../blobs") / blob)


def test_cache_that_another_tool_filled_is_enough(repositories: Path, tmp_path: Path) -> None:
    fill_cache(tmp_path, repositories / "owner" / "whole", NEEDED)
    (found,) = load("hf://owner/whole", home=tmp_path, offline=True)
    assert found["revision"] == COMMIT
    assert sorted(Path(path).name for path in found["files"].values()) == NEEDED


def test_half_filled_cache_names_the_missing_file(repositories: Path, tmp_path: Path) -> None:
    fill_cache(tmp_path, repositories / "owner" / "whole", ["config.json", "mimi.safetensors"])
    (answer,) = load("hf://owner/whole", home=tmp_path, offline=True)
    assert answer["message"] == (
        "owner/whole needs 'model.safetensors', which is not in the cache, and the hub cannot be reached; "
        f"when online, run: hf download owner/whole model.safetensors --revision {COMMIT}"
    )


def test_any_other_failure_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> str:
        raise OSError("no space left on device\nand more") from ValueError("the disk is full\nreally")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointNotFoundError, match=r"^fetching from owner/repo failed: the disk is full$"):
        load_checkpoint("hf://owner/repo")


@pytest.mark.parametrize(
    "ref", ["hf://", "hf://owner", "hf://owner/", "hf:///repo", "hf://a/b/c", "hf://owner@v1"]
)
def test_malformed_name_is_refused(ref: str) -> None:
    with pytest.raises(CheckpointFormatError, match=r"not of the form hf://owner/repo\[@revision\]"):
        load_checkpoint(ref)


def test_reference_without_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mimi", "mimi_name": "hf://owner/repo"}')
    with pytest.raises(
        CheckpointFormatError, match="'hf://owner/repo' is not of the form hf://owner/repo/file"
    ):
        load_checkpoint(str(tmp_path))


def test_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[torch\]'"):
        load_checkpoint("hf://owner/repo")
