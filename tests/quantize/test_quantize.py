"""``antiphon quantize``: the torch backend runs its output."""

from __future__ import annotations

import gc
import hashlib
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig, quantize_

from antiphon import cli
from antiphon.backends.base import FloatArray, StepInputs
from antiphon.backends.registry import make_backend
from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.layers import Linear
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.quantised import follows_recipe, int8_linears
from antiphon.backends.torch.weights import load_lm
from antiphon.errors import ConfigError, MissingExtraError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon_quantize import main as module
from antiphon_quantize.main import main
from antiphon_quantize.recipe import load_recipe
from antiphon_quantize.torch_rounding import rounder_of
from tests.support.make_checkpoint import make_checkpoint


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["moshi", "personaplex", "stt"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint, and what the command line made of it."""
    folder = tmp_path_factory.mktemp("quantize")
    source = make_checkpoint(folder / "source", kind=request.param)
    out = folder / "out"
    assert (
        cli.run(
            [
                "quantize",
                "--no-gate",
                "--target",
                "torch",
                "--recipe",
                "int8",
                "--model",
                str(source),
                str(out),
            ]
        )
        == 0
    )
    return load_checkpoint(str(source)), load_checkpoint(str(out))


def lm_of(checkpoint: Checkpoint) -> LanguageModel:
    assert checkpoint.spec.lm is not None
    return load_lm(
        checkpoint.file("lm"),
        checkpoint.spec.lm.config,
        steps=checkpoint.spec.lm.dep_q,
        compute=Compute(torch.bfloat16),
    )


def test_every_layer_is_loaded_bit_by_bit_as_torchao_rounded_it(pair: tuple[Checkpoint, Checkpoint]) -> None:
    full, small = map(lm_of, pair)
    rounded = 0
    for name, original in full.named_modules():
        if not isinstance(original, Linear):
            continue
        loaded = small.get_submodule(name)
        if not follows_recipe(name):
            assert torch.equal(loaded.get_parameter("weight"), original.weight)
            continue
        layer = nn.Linear(original.in_features, original.out_features, bias=False)
        layer.weight = nn.Parameter(original.weight, requires_grad=False)
        quantize_(layer, Int8WeightOnlyConfig(version=2))
        assert isinstance(layer.weight, Int8Tensor)
        assert torch.equal(loaded.get_parameter("weight"), layer.weight.qdata)
        assert torch.equal(loaded.get_parameter("scale")[:, None], layer.weight.scale)
        assert loaded.get_parameter("scale").dtype == torch.float32
        rounded += 1
    assert rounded == len(int8_linears(small)) > 0


def test_nothing_but_the_chosen_matrices_changed(pair: tuple[Checkpoint, Checkpoint]) -> None:
    before, after = pair
    for role in ("mimi", "tokenizer", "mimi_config"):
        assert before.file(role).read_bytes() == after.file(role).read_bytes()
    assert before.spec.lm == after.spec.lm
    assert (before.spec.kind, before.spec.family) == (after.spec.kind, after.spec.family)
    assert before.spec.parameters == after.spec.parameters
    assert before.spec.generation == after.spec.generation
    assert after.file("lm").stat().st_size < before.file("lm").stat().st_size


def test_the_manifest_says_what_was_done(pair: tuple[Checkpoint, Checkpoint]) -> None:
    before, after = pair
    assert after.verify() == len(after.files) == 4
    recipe = after.quantization_for("torch")
    assert recipe is not None
    assert (recipe.scheme, recipe.bits, recipe.group_size) == ("int8-weight-per-channel", 8, None)
    assert recipe.source_sha256 == hashlib.sha256(before.file("lm").read_bytes()).hexdigest()
    assert "text_linear.*" in recipe.keep
    assert recipe.tool.startswith("antiphon quantize ")
    assert recipe.options == {"recipe": "int8", "quantize": ["transformer.layers.*", "depformer.layers.*"]}
    assert after.spec.name == f"{before.spec.name}-int8"
    assert (after.backends["torch"].dtype, after.backends["torch"].options) == (
        "bfloat16",
        {"activations": "int8"},
    )


def run(checkpoint: Checkpoint, pcm: FloatArray, **options: object) -> tuple[str, list[FloatArray]]:
    """The quantisation a backend reports, and the pause probabilities it hears in every frame."""
    options = {"dtype": "float32", **options}
    backend = make_backend("auto", checkpoint, slots=1, device="cpu", options=options)
    row, heard = np.zeros(1, np.int32), []
    for index, frame in enumerate(pcm):
        reply = backend.step(StepInputs(row, np.array([index == 0]), frame[None]))
        if reply.vad is not None:
            heard.append(reply.vad[0])
    return backend.info.quantization, heard


def test_it_runs_as_it_is_and_stays_close_to_the_original(pair: tuple[Checkpoint, Checkpoint]) -> None:
    pcm = np.random.default_rng(0).normal(0, 0.1, (6, 1920)).astype(np.float32)
    (said, got), (_, want) = (run(checkpoint, pcm) for checkpoint in reversed(pair))
    assert said == "weights-int8+activations-int8"
    said, plain = run(pair[1], pcm, activations="compute")
    assert said == "weights-int8"
    assert len(got) == len(want) == len(plain)
    if want:
        errors = [np.abs(np.subtract(found, want)).max() for found in (got, plain)]
        assert 0 < errors[1] < errors[0] < 0.05


def test_what_exists_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = make_checkpoint(tmp_path / "source"), tmp_path / "out"
    line = ["--no-gate", "--model", str(source), str(out)]
    assert main(line) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{out}: 26 of ")
    assert "Rounding changed the weights by 0." in said.out
    assert "model.safetensors" in said.err
    before = (out / "antiphon.json").read_bytes()
    (out / "antiphon.json").write_text("{}")
    with pytest.raises(ConfigError, match="out exists; give --force to replace it"):
        main(line)
    assert main([*line, "--force"]) == 0
    assert (out / "antiphon.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"source", "out"}


def test_what_cannot_be_done_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = make_checkpoint(tmp_path / "source"), tmp_path / "out"
    with pytest.raises(UnsupportedError, match="echo has no language model; there is nothing to quantize"):
        main(["--model", "echo", str(out)])
    assert main(["--no-gate", "--model", str(source), str(out)]) == 0
    with pytest.raises(UnsupportedError, match=r"was rounded already, in 26 of its \d+ tensors"):
        main(["--model", str(out), str(tmp_path / "again")])
    recipe = tmp_path / "nothing.toml"
    rule = '[[quantize]]\ntensors = "nowhere.*"\nwhy = "no reason"\n'
    recipe.write_text(f'description = ""\nscheme = "x"\nbits = 8\n{rule}')
    with pytest.raises(UnsupportedError, match=r"the recipe chooses none of the \d+ tensors of"):
        main(["--model", str(source), "--recipe", str(recipe), str(tmp_path / "again")])
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"lora": True, "lora_name": "lora.safetensors"}))
    (source / "lora.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UnsupportedError, match="has a LoRA; merge it into the weights first"):
        main(["--model", str(source), str(tmp_path / "again")])
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "torchao" else object())
    with pytest.raises(MissingExtraError, match=r"'torchao', which is not installed.*\[torch\]'"):
        main(["--model", str(source), str(out)])


def test_a_rounded_matrix_does_not_wait_for_the_garbage_collector() -> None:
    recipe, shape = load_recipe("torch", "int8"), (37, 41)
    rounder = rounder_of(recipe)
    gc.collect()
    gc.disable()
    try:
        rounded = rounder(torch.randn(shape))
        assert (rounded.weight.shape, rounded.scale.shape) == (shape, (37, 1))
        del rounded
        left = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
        assert not [found for found in left if found.shape == shape and found.dtype == torch.int8]
    finally:
        gc.enable()


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert (
        "antiphon quantize --target torch --recipe int8 --model ./moshiko ./moshiko-int8"
        in capsys.readouterr().out
    )


def test_progress_is_a_line_in_a_terminal_and_a_few_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        show = module.show_progress(stream, itertools.count(0.0, 2.0).__next__)
        for done in range(101):
            show(done, 100, "x")
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\r\x1b[K100/100 x\n")
    assert 8 <= log.getvalue().count("\n") <= 10
    assert log.getvalue().endswith("100/100 x\n")
    assert "50/100 x, 2 min left\n" in log.getvalue()
    assert "\r\x1b[K60/100 x, 80 s left" in terminal.getvalue()
