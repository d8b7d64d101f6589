"""The small checkpoints: upstream loads them, equal seeds give equal bytes, and the output varies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moshi.models.lm import LMGen, LMModel
from moshi.models.loaders import CheckpointInfo
from moshi.utils.compile import no_compile

from antiphon.models.catalog import load_checkpoint
from antiphon.models.manifest import sha256
from tests.support import make_checkpoint as make_checkpoint_module
from tests.support.make_checkpoint import main, make_checkpoint
from tests.support.small_models import KINDS, make_lm, trial_signal

FRAMES = 40
LMS = sorted(KINDS.keys() - {"codec", "personaplex"})  # personaplex's config is wrong on purpose


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("made")
    codec = make_checkpoint(root / "codec", kind="codec", seed=5)
    others = (kind for kind in KINDS if kind != "codec")
    return {"codec": codec} | {kind: make_checkpoint(root / kind, kind=kind, mimi=codec) for kind in others}


def upstream(folder: Path) -> CheckpointInfo:
    """The checkpoint as upstream reads it, its files given by path (names would be sought on the hub)."""
    raw = json.loads((folder / "config.json").read_text())
    return CheckpointInfo.from_hf_repo(
        "none",
        moshi_weights=folder / raw["moshi_name"],
        mimi_weights=folder / raw["mimi_name"],
        tokenizer=folder / raw["tokenizer_name"],
        config_path=folder / "config.json",
        mimi_config_path=folder / raw["mimi_config_name"],
    )


def heard(info: CheckpointInfo) -> torch.Tensor:
    """Codes ``[1, codebooks, FRAMES]`` of a test signal."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        return info.get_mimi().encode(trial_signal(FRAMES * 1920)[None, None])


@pytest.mark.parametrize("kind", LMS)
def test_upstream_loads_it(kind: str, made: dict[str, Path]) -> None:
    info = upstream(made[kind])
    lm, spec = info.get_moshi(dtype=torch.float32), load_checkpoint(str(made[kind])).spec
    assert spec.lm is not None
    assert (lm.n_q, lm.dep_q, tuple(lm.delays)) == (spec.lm.n_q, spec.lm.dep_q, spec.lm.delays)
    assert (lm.card, lm.text_card, lm.dim) == (spec.lm.card, spec.lm.text_card, spec.lm.dim)
    assert info.get_mimi().num_codebooks == spec.mimi.codebooks
    assert info.get_text_tokenizer().vocab_size() == spec.lm.text_card
    assert len(lm.extra_heads) == spec.lm.extra_heads


def test_codes_follow_the_audio(made: dict[str, Path]) -> None:
    codes = heard(upstream(made["moshi"]))[0].numpy()
    distinct = [len(np.unique(level)) for level in codes]
    assert min(distinct) > FRAMES / 4, distinct


def test_codec_neither_whispers_nor_clips(made: dict[str, Path]) -> None:
    info = upstream(made["moshi"])
    with torch.no_grad():
        pcm = info.get_mimi().decode(heard(info))
    assert 0.02 < float(pcm.std()) < 0.5


@pytest.mark.parametrize("kind", ["moshi", "hibiki", "stt"])
def test_greedy_tokens_vary(kind: str, made: dict[str, Path]) -> None:
    info = upstream(made[kind])
    codes, lm = heard(info), info.get_moshi(dtype=torch.float32)
    generator = LMGen(lm, use_sampling=False, support_out_of_sync=True)
    tokens = []
    with no_compile(), torch.no_grad(), generator.streaming(1):
        for frame in range(FRAMES):
            out = generator.step(codes[:, : lm.n_q - lm.dep_q, frame : frame + 1])
            assert out is not None
            tokens.append(out[0, :, 0].numpy())
    changes = (np.diff(tokens[4:], axis=0) != 0).mean(axis=0)
    assert changes.min() > 0.5, changes  # in every stream, most tokens differ from the one before


def test_same_seed_makes_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    torch.manual_seed(99)
    first = make_checkpoint(tmp_path / "a", seed=1)
    torch.manual_seed(7)
    again, other = make_checkpoint(tmp_path / "b", seed=1), make_checkpoint(tmp_path / "c", seed=2)
    names = sorted(path.name for path in first.iterdir())
    assert [sha256(first / name) for name in names] == [sha256(again / name) for name in names]
    for name in ("model.safetensors", "mimi.safetensors"):
        assert sha256(first / name) != sha256(other / name)


def test_the_bytes_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On few cores the sums may agree by chance, so the number of threads is looked at as well."""
    seen: set[int] = set()

    def noting(arguments: Mapping[str, Any]) -> LMModel:
        seen.add(torch.get_num_threads())
        return make_lm(arguments)

    monkeypatch.setattr(make_checkpoint_module, "make_lm", noting)
    before = torch.get_num_threads()
    digests = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            folder = make_checkpoint(tmp_path / str(threads))
            assert torch.get_num_threads() == threads
            digests.append([sha256(folder / f"{name}.safetensors") for name in ("mimi", "model")])
    finally:
        torch.set_num_threads(before)
    assert digests[0] == digests[1]
    assert seen == {1}


def test_making_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    make_checkpoint(tmp_path, kind="codec")
    assert torch.equal(torch.rand(1), expected)


def test_shape_is_the_callers(tmp_path: Path, made: dict[str, Path]) -> None:
    make_checkpoint(tmp_path, mimi=made["codec"], dim=32, num_layers=3, context=7, text_card=128)
    lm = load_checkpoint(str(tmp_path)).spec.lm
    assert lm is not None
    assert (lm.dim, lm.num_layers, lm.context, lm.text_card, lm.card) == (32, 3, 7, 128, 64)


def test_command_line_writes_a_manifest_and_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codec = load_checkpoint("echo").file("mimi")
    folder = tmp_path / "linked"
    command = [str(folder), "--seed", "4", "--dim", "32", "--mimi", str(codec.parent), "--link", "--manifest"]
    assert main(command) == 0
    assert main(command) == 0  # and again, over what is there
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.manifest is not None
    assert checkpoint.verify() == 5
    assert checkpoint.file("mimi").samefile(codec)
    assert not (folder / "mimi.safetensors").exists()
    assert capsys.readouterr().out.splitlines()[0].startswith(f"{folder}: moshi, ")


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "python -m tests.support.make_checkpoint out/stt --kind stt" in capsys.readouterr().out
