"""Weights between two models of one shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.train import blend
from lab.train.codec import load_mimi
from lab.train.rounding import BLOCK, is_rounded


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, built_in: Path) -> Path:
    """A trainer's folder whose weights are those of tiny-stt plus 0.5."""
    folder = tmp_path_factory.mktemp("trained")
    shipped = built_in / "tiny-stt"
    weights = load_file(shipped / "model.safetensors")
    (folder / "best").mkdir()
    save_file({name: tensor + 0.5 for name, tensor in weights.items()}, folder / "best" / "model.safetensors")
    config = (shipped / "config.json").read_text()
    unpublished = {"moshi_name", "tokenizer_name", "mimi_name", "mimi_config_name", "lm_gen_config"}
    kept = {key: value for key, value in json.loads(config).items() if key not in unpublished}
    (folder / "best" / "config.json").write_text(json.dumps(kept))
    (folder / "tokenizer.model").write_bytes((shipped / "tokenizer.model").read_bytes())
    return folder


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_blend_lies_between_its_two_models(
    tmp_path: Path, built_in: Path, trained: Path, share: float
) -> None:
    shipped = built_in / "tiny-stt"
    arguments = [
        "--start",
        str(shipped),
        "--trained",
        str(trained),
        "--share",
        str(share),
        "--out",
        str(tmp_path),
    ]
    assert blend.main(arguments) == 0
    got, start = load_file(tmp_path / "last" / "model.safetensors"), load_file(shipped / "model.safetensors")
    for name in ("text_linear.weight", "emb.3.weight", "out_norm.alpha"):
        wanted = start[name].float() + 0.5 * share
        torch.testing.assert_close(got[name].float(), wanted, rtol=0.01, atol=0.005)
    head = "extra_heads.2.weight"
    torch.testing.assert_close(got[head].float(), start[head].float() + 0.5, rtol=0.01, atol=0.005)
    assert (tmp_path / "tokenizer.model").exists()


def test_a_rounded_blend_is_on_the_grid_of_its_graphs(tmp_path: Path, built_in: Path, trained: Path) -> None:
    blend.blend(built_in / "tiny-stt", trained, 0.5, tmp_path, is_rounded=True)
    got = load_file(tmp_path / "last" / "model.safetensors")
    rounded = [tensor.float() for name, tensor in got.items() if is_rounded(name, tensor)]
    assert rounded
    assert all(len(block.unique()) <= 16 for block in rounded[0][0].split(BLOCK))


def test_a_voice_has_its_own_share() -> None:
    names = (
        "depformer_in.0.weight",
        "linears.0.weight",
        "text_linear.weight",
        "extra_heads.0.weight",
    )
    start = {name: torch.zeros(2) for name in names}
    trained = {name: torch.ones(2) for name in names}
    got = [tensor[0].item() for tensor in blend.blended(start, trained, 0.5, 0.25).values()]
    assert got == [0.25, 0.25, 0.5, 1.0]


def test_a_share_is_between_nothing_and_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        blend.main(["--start", "a", "--trained", "b", "--share", "1.5", "--out", "c"])
    assert "--share 1.5 is not between 0 and 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        blend.main(["--start", "a", "--trained", "b", "--voice-share", "-1", "--out", "c"])
    assert "--voice-share -1.0 is not between 0 and 1" in capsys.readouterr().err


def test_codecs_are_blended_where_the_folders_have_no_model(
    tmp_path: Path, built_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny, codec, out = built_in / "tiny", tmp_path / "codec", tmp_path / "out"
    codec.mkdir()
    weights = load_file(tiny / "mimi.safetensors")
    decoded = {
        name: tensor + 0.5 if name.startswith("decoder.") else tensor for name, tensor in weights.items()
    }
    save_file(decoded, codec / "mimi.safetensors")
    (codec / "mimi_config.json").write_bytes((tiny / "mimi_config.json").read_bytes())
    arguments = ["--start", str(tiny), "--trained", str(codec), "--share", "0.7", "--out", str(out)]
    assert blend.main(arguments) == 0
    got, start = load_mimi(out).state_dict(), load_mimi(tiny).state_dict()
    moved = {name for name, tensor in got.items() if not torch.equal(tensor, start[name])}
    assert moved
    assert all(name.startswith("decoder.") for name in moved)
    for name in moved:
        torch.testing.assert_close(got[name], start[name] + 0.35, rtol=0.01, atol=0.005)
    with pytest.raises(SystemExit):
        blend.main([*arguments, "--voice-share", "0"])
    assert "--voice-share is for talkers, and these are codecs" in capsys.readouterr().err
