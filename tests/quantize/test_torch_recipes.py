"""Every recipe of the torch target: its output loads, runs, and has an error within its bits."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from antiphon.audio.wav import write_wav
from antiphon.backends.base import StepInputs
from antiphon.backends.registry import make_backend
from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.quantised import Int4Linear, Int8Linear
from antiphon.backends.torch.state import State
from antiphon.backends.torch.weights import dequantized, load_lm
from antiphon.errors import ConfigError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon_quantize.main import main
from antiphon_quantize.recipe import load_recipe, recipe_names
from tests.support.make_checkpoint import make_checkpoint

RUNS = {
    "fp8": ("none", 0.03, 0.02),
    "int4": ("weights-int4", 0.1, 0.06),
    "int4-awq": ("weights-int4", 0.12, 0.06),
    "int4-gptq": ("weights-int4", 0.2, 0.09),
    "int8": ("weights-int8+activations-int8", 0.01, 0.01),
    "int8-kv": ("weights-int8+activations-int8+kv-int8", 0.01, 0.02),
    "int8-smooth": ("weights-int8+activations-int8", 0.015, 0.01),
    "int8-static": ("weights-int8+activations-int8", 0.015, 0.09),
    "int8-weight-only": ("weights-int8", 0.01, 0.006),
    "w4a8": ("weights-int4+activations-int8", 0.1, 0.06),
}
"""By recipe: what the backend says it runs, and bounds on the errors of weights and of hidden vectors."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small duplex model whose rows consist of whole blocks, and a recording of a second."""
    folder = tmp_path_factory.mktemp("recipes")
    noise = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)
    write_wav(folder / "noise.wav", noise, 24_000)
    return make_checkpoint(folder / "source", dim=64, hidden_scale=4.5)


def quantize(source: Path, out: Path, recipe: str) -> Checkpoint:
    line = ["--recipe", recipe, "--model", str(source), str(out), "--no-gate"]
    if load_recipe("torch", recipe).method != "nearest":
        line += ["--calibration", str(source.parent / "noise.wav")]
    assert main(line) == 0
    return load_checkpoint(str(out))


@pytest.fixture(scope="module")
def made(source: Path) -> Callable[[str], Checkpoint]:
    """What a recipe makes of the model, made once."""
    return functools.cache(lambda name: quantize(source, source.parent / name, name))


def lm_of(checkpoint: Checkpoint) -> LanguageModel:
    assert checkpoint.spec.lm is not None
    options = {} if checkpoint.quantization_for("torch") is None else checkpoint.backends["torch"].options
    model = load_lm(
        checkpoint.file("lm"),
        checkpoint.spec.lm.config,
        steps=checkpoint.spec.lm.dep_q,
        compute=Compute(kv=KVForm(options.get("kv", "compute"))),
    )
    activations = options.get("activations")
    return model.prepare(pack=True, rounds_input=None if activations is None else activations == "int8")


def hidden(model: LanguageModel) -> Tensor:
    """Hidden vectors of two rows over ten frames of given tokens."""
    tokens = torch.randint(0, 60, (10, 2, 17, 1), generator=torch.Generator().manual_seed(0))
    state = State(model.specs(), 2)
    return torch.stack([model(frame, state.step())[0] for frame in tokens])


def error(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want.float()).norm() / want.float().norm())


def test_every_recipe_is_held_to_something() -> None:
    assert list(RUNS) == recipe_names("torch")


@pytest.mark.parametrize("name", RUNS)
def test_what_a_recipe_makes_is_loaded_runs_and_is_near(
    name: str, source: Path, made: Callable[[str], Checkpoint]
) -> None:
    said, weight_bound, hidden_bound = RUNS[name]
    before, after = load_checkpoint(str(source)), made(name)
    assert after.verify() == 4
    old, new = load_file(before.file("lm")), load_file(after.file("lm"))
    chosen = [tensor for tensor in old if f"{tensor}_scale" in new]
    assert len(chosen) == 26
    assert max(error(dequantized(new, tensor), old[tensor]) for tensor in chosen) < weight_bound
    assert all(torch.equal(new[tensor], old[tensor]) for tensor in old if tensor not in chosen)
    assert 0 < error(hidden(lm_of(after)), hidden(lm_of(before))) < hidden_bound

    backend = make_backend("auto", after, slots=1, device="cpu", options={"dtype": "float32"})
    row = np.zeros(1, np.int32)
    for frame in range(3):
        reply = backend.step(StepInputs(row, np.array([frame == 0]), np.zeros((1, 1920), np.float32)))
    assert reply.pcm is not None
    assert np.isfinite(reply.pcm).all()
    assert backend.info.quantization == said


@pytest.mark.parametrize("name", ["int4-awq", "int8-static", "w4a8"])
def test_a_layers_rows_do_not_depend_on_their_number_or_loudness(
    name: str, made: Callable[[str], Checkpoint]
) -> None:
    model = lm_of(made(name))
    layers = [layer for layer in model.modules() if isinstance(layer, Int4Linear | Int8Linear)]
    assert len(layers) == 4 * 2 + 4 * 8
    for layer in layers:
        rows = torch.randn(9, layer.in_features) * torch.logspace(-2, 2, 9)[:, None]
        alone = torch.cat([layer(row[None]) for row in rows])
        assert torch.equal(layer(rows), alone)


def test_a_scale_that_is_off_breaks_the_bound(source: Path, made: Callable[[str], Checkpoint]) -> None:
    want = hidden(lm_of(load_checkpoint(str(source))))
    model = lm_of(made("int4"))
    for layer in model.modules():
        if isinstance(layer, Int4Linear):
            layer.scale.mul_(1.1)
    assert error(hidden(model), want) > RUNS["int4"][2]


def test_rows_that_are_no_whole_blocks_stay_as_they_are(tmp_path: Path) -> None:
    odd = make_checkpoint(tmp_path / "odd")  # rows of 48 and 126 in the large transformer
    after = quantize(odd, tmp_path / "out", "int4")
    tensors = load_file(after.file("lm"))
    assert tensors["transformer.layers.0.self_attn.in_proj_weight"].dtype == torch.bfloat16
    assert tensors["depformer.layers.0.self_attn.in_proj_weight"].dtype == torch.uint8


def test_the_built_in_recordings_are_heard_where_none_are_given(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antiphon_quantize.torch_target.MOST_FRAMES", 20)
        assert (
            main(["--recipe", "int4-gptq", "--no-gate", "--model", str(source), str(tmp_path / "out")]) == 0
        )
    said = capsys.readouterr()
    assert "20/20 frames heard" in said.err
    assert "are INT4" in said.out


def test_what_cannot_be_heard_is_said(source: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.wav"
    write_wav(short, np.zeros(100, np.float32), 24_000)
    line = ["--recipe", "int4-awq", "--calibration", str(short), "--model"]
    with pytest.raises(ConfigError, match="1 recordings of 100 samples; a frame has 1920"):
        main([*line, str(source), str(tmp_path / "out")])
    spoken = make_checkpoint(tmp_path / "tts", kind="tts")
    with pytest.raises(UnsupportedError, match="is a tts model: it has no audio input"):
        main([*line, str(spoken), str(tmp_path / "out")])
    with pytest.raises(ConfigError, match="--calibration is for the target torch; onnx has no calibration"):
        main(["--target", "onnx", "--recipe", "int8", *line[2:], str(source), str(tmp_path / "out")])
    assert not (tmp_path / "out.part").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.recipe import load_recipe
from antiphon_quantize.torch_target import quantize

def progress(done, total, what):
    if what == "transformer.layers.0.norm1.alpha":
        os.kill(os.getpid(), signal.SIGKILL)

checkpoint, out, recording = load_checkpoint(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
recipe = load_recipe("torch", "int8-smooth")
quantize(checkpoint, recipe, "int8-smooth", out, progress, calibration=[recording])
"""


def test_a_killed_run_leaves_nothing_half_written_and_is_gone_on_with(
    source: Path, tmp_path: Path, made: Callable[[str], Checkpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = made("int8-smooth"), tmp_path / "out"
    capsys.readouterr()
    line = [sys.executable, "-c", KILLED, str(source), str(out), str(source.parent / "noise.wav")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not out.exists()
    resumed = quantize(source, out, "int8-smooth")
    assert "frames heard" not in capsys.readouterr().err
    for role, path in whole.files.items():
        assert resumed.file(role).read_bytes() == path.read_bytes(), role
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in whole.root.iterdir())
    assert not (tmp_path / "out.part").exists()
