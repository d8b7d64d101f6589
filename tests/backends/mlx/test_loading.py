"""Loading of model files: validation and error messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from antiphon import cli
from antiphon.backends.base import Backend, StepInputs
from antiphon.backends.host import HostBackend
from antiphon.backends.mlx.executor import MlxFrames, device_bytes, tick_size
from antiphon.backends.mlx.layers import Matrix, Weights, load_arrays, stack
from antiphon.backends.mlx.lm import cut
from antiphon.backends.mlx.loading import make
from antiphon.backends.mlx.mimi import mimi_arrays
from antiphon.errors import CheckpointFormatError, ConfigError, DeviceLostError, StepError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.weights import find_sources, read_header
from tests.backends.contract import GREEDY, Driver, voice
from tests.support.make_checkpoint import make_checkpoint


def run(backend: Backend) -> list[Any]:
    """The PCM of a greedy session."""
    backend.set_parameters(0, GREEDY)
    replies = Driver(backend).run(0, voice(1, 6, backend.info))
    return [reply.pcm for reply in replies if reply.pcm is not None]


def executor_of(backend: Backend) -> MlxFrames:
    assert isinstance(backend, HostBackend)
    assert isinstance(backend.executor, MlxFrames)
    return backend.executor


def republish(source: Path, target: Path) -> Path:
    """The same model under the names that are published for mlx."""
    shutil.copytree(source, target)
    spec = load_checkpoint(str(source)).spec.lm
    assert spec is not None
    arrays, path = load_arrays(source / "model.safetensors"), target / "model.safetensors"
    sources = find_sources(read_header(source / "model.safetensors"), spec.config, spec.depformer_steps)
    mx.save_safetensors(str(path), {name: cut(arrays[s.name], s) for name, s in sources.items()})
    return target


def test_both_published_layouts_are_the_same_model(tmp_path: Path) -> None:
    schedule = [0, 1, 2, 3, 4, 4, 5, 5]
    source = make_checkpoint(tmp_path / "source", depformer_weights_per_step_schedule=schedule)
    again = republish(source, tmp_path / "mlx")
    backends = [make(load_checkpoint(str(folder)), slots=1, device="cpu") for folder in (source, again)]
    assert backends[0].info.memory == backends[1].info.memory
    for one, other in zip(*map(run, backends), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rounded_models_load_back_and_stay_close(wide: Path, rounded: dict[str, Path]) -> None:
    whole = make(load_checkpoint(str(wide)), slots=1, device="cpu")
    sizes = [whole.info.memory["weights"]]
    for name, bits in (("q8", "weights-int8"), ("q4", "weights-int4+weights-int8")):
        checkpoint = load_checkpoint(str(rounded[name]))
        backend = make(checkpoint, slots=1, device="cpu", dtype="float32")
        assert backend.info.quantization == bits
        assert all(np.isfinite(pcm).all() for pcm in run(backend))
        sizes.append(backend.info.memory["weights"])
        assert checkpoint.spec.parameters == load_checkpoint(str(wide)).spec.parameters
    assert sizes == sorted(sizes, reverse=True)


def test_a_rounded_matrix_multiplies_and_is_looked_up_as_its_values(
    wide: Path, rounded: dict[str, Path]
) -> None:
    whole = executor_of(make(load_checkpoint(str(wide)), slots=1, device="cpu")).generator
    x = mx.random.normal((3, 128), key=mx.random.key(0))
    for name, most in (("q8", 0.02), ("q4", 0.2)):
        backend = make(load_checkpoint(str(rounded[name])), slots=1, device="cpu", dtype="float32")
        small = executor_of(backend).generator
        assert whole is not None
        assert small is not None
        layers = [g.model.transformer.layers[1].in_proj for g in (whole, small)]
        wanted, got = (layer(x) for layer in layers)
        error = float(np.array(mx.linalg.norm(got - wanted) / mx.linalg.norm(wanted)))
        assert 0 < error < most
        index = mx.array([[0, 5], [77, 3]])
        tables = [g.model.text_emb.table.rows(index) for g in (whole, small)]
        assert tables[1].shape == (2, 2, 128)
        np.testing.assert_allclose(np.array(tables[1]), np.array(tables[0]), rtol=0, atol=0.05)


def test_published_files_without_a_configuration_are_found(tmp_path: Path) -> None:
    """A folder with ``model.q4.safetensors`` is Moshi 7B, whose shape these weights have not."""
    source = make_checkpoint(tmp_path / "source")
    (source / "config.json").unlink()
    (source / "model.safetensors").rename(source / "model.q4.safetensors")
    (source / "mimi.safetensors").rename(source / "tokenizer-e351c8d8-checkpoint125.safetensors")
    (source / "tokenizer.model").rename(source / "tokenizer_spm_32k_3.model")
    with pytest.raises(CheckpointFormatError, match=r"the weights hold 2 layers .*, the config says 32"):
        load_checkpoint(str(source))


def test_weights_are_handed_out_once_checked() -> None:
    arrays = {"a.weight": mx.zeros((2, 64)), "b": mx.zeros(3)}
    weights = Weights(arrays, "f", mx.float32)
    with pytest.raises(CheckpointFormatError, match="f: tensor missing: c"):
        weights.array("c", (3,))
    with pytest.raises(CheckpointFormatError, match=r"f: b is \(3,\), the configuration says \(4,\)"):
        weights.array("b", (4,))
    assert weights.linear("a", 64, 2)(mx.ones((1, 64))).shape == (1, 2)
    with pytest.raises(CheckpointFormatError, match=r"f: 1 tensors unknown \['x'\]"):
        Weights({"x": mx.zeros(1)}, "f", mx.float32).finish()


def test_groups_that_do_not_fit_are_refused() -> None:
    packed, scales, biases = mx.quantize(mx.random.normal((4, 64)), 32, 4)
    arrays = {"m.weight": packed, "m.scales": scales, "m.biases": biases}
    matrix = Weights(arrays, "f", mx.float32).matrix("m", 4, 64)
    assert (matrix.bits, matrix.group_size) == (4, 32)
    with pytest.raises(CheckpointFormatError, match=r"m is \(4, 8\) with scales \(4, 2\).*says \(4, 96\)"):
        Weights(arrays, "f", mx.float32).matrix("m", 4, 96)
    with pytest.raises(CheckpointFormatError, match=r"read together have .* \[\(0, 0\), \(4, 32\)\]"):
        stack([matrix, Matrix(mx.zeros((4, 64)))])


def test_a_narrow_codebook_is_widened_before_it_is_divided() -> None:
    prefix = "quantizer.rvq_first.vq.layers.0._codebook"
    book: dict[str, Any] = {"embedding_sum": [[1.0, 10.0], [3.0, -7.0]], "cluster_usage": [3.0, 0.0]}
    narrow = {f"{prefix}.{name}": mx.array(values, mx.bfloat16) for name, values in book.items()}
    (table,) = mimi_arrays(narrow).values()
    np.testing.assert_array_equal(
        np.array(table.astype(mx.float32)),
        np.float32(book["embedding_sum"]) / np.maximum(np.float32(book["cluster_usage"]), 1e-5)[:, None],
    )


@pytest.mark.parametrize("bits", [0, 8])
def test_a_row_of_a_table_can_be_another_copied(bits: int) -> None:
    plain = mx.random.normal((5, 64), key=mx.random.key(1))
    table = Matrix(plain) if bits == 0 else Matrix(*mx.quantize(plain, 32, bits), 32, bits)
    changed = table.with_row(2, 3).rows(mx.arange(5))
    before = table.rows(mx.arange(5))
    assert mx.array_equal(changed[2], before[3])
    assert mx.array_equal(changed[mx.array([0, 1, 3, 4])], before[mx.array([0, 1, 3, 4])])


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    guided: dict[str, Any] = {
        "tts_config": {"cfg_coef": 2.5},
        "conditioners": {},
        "cross_attention": False,
        "fuser": {},
    }
    tts = load_checkpoint(str(make_checkpoint(tmp_path / "tts", kind="tts", **guided)))
    with pytest.raises(UnsupportedError, match=r"run twice a step, guided by 2\.5; .* does not, torch does"):
        make(tts, slots=1)
    assert cli.run(["quantize", "--no-gate", "--model", str(source), str(tmp_path / "int8")]) == 0
    with pytest.raises(UnsupportedError, match=r"INT8 with a scale for each row, in 26 of its \d+ tensors"):
        make(load_checkpoint(str(tmp_path / "int8")), slots=1)
    config = json.loads((source / "config.json").read_text())
    for change, words in (
        (
            {"cross_attention": True},
            "cross_attention is True, but there are 0 positions of voices",
        ),
        ({"positional_embedding": "sin"}, "positional_embedding is 'sin'; it can be rope"),
        ({"depformer_pos_emb": "sin"}, "depformer_pos_emb is 'sin'; only 'none' is supported"),
        ({"norm": "batch_norm"}, "norm is 'batch_norm'; it can be one of layer_norm"),
        ({"gating": "swish"}, "gating is 'swish'; it can be none, silu"),
        ({"conditioners": {"cfg": {}}}, r"a moshi model with the conditions \['cfg'\] cannot be run"),
    ):
        (source / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UnsupportedError, match=words):
            make(load_checkpoint(str(source)), slots=1, device="cpu")
    (source / "config.json").write_text(json.dumps(config | {"num_heads": 5, "dim": 50}))
    with pytest.raises(CheckpointFormatError):
        make(load_checkpoint(str(source)), slots=1)
    lora = {"lora": True, "lora_name": "lora.safetensors"}
    (source / "config.json").write_text(json.dumps(config | lora))
    (source / "lora.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UnsupportedError, match="has a LoRA; merge it into the weights first"):
        make(load_checkpoint(str(source)), slots=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda"}, "no device of mlx is called 'cuda'; there are: cpu, gpu"),
        ({"dtype": "int3"}, "no dtype is called 'int3'; there are: float32, bfloat16, float16"),
        ({"kv": "int3"}, "kv is 'int3'; it can be compute or int8"),
        ({"compile": "perhaps"}, "compile is 'perhaps'; it can be auto, on, off"),
        ({"slots": 0}, "at least 1 slot, not 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(load_checkpoint("echo"), **{"slots": 1, **options})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_narrow_dtype_is_the_language_models_alone(tmp_path: Path, dtype: str) -> None:
    backend = make(load_checkpoint(str(make_checkpoint(tmp_path / "m"))), slots=1, device="cpu", dtype=dtype)
    assert (backend.info.dtype, backend.info.device) == (dtype, "cpu")
    tensors = executor_of(backend).state.tensors
    assert str(tensors["lm.0.k"].dtype) == f"mlx.core.{dtype}"
    assert tensors["decoder.0.past"].dtype == mx.float32
    assert all(np.isfinite(pcm).all() for pcm in run(backend))


def test_compiled_stages_are_the_same_functions(tmp_path: Path) -> None:
    """Traced and run without fusing, which on a CPU would take a C++ compiler."""
    checkpoint = load_checkpoint(str(make_checkpoint(tmp_path / "m")))
    mx.disable_compile()
    try:
        compiled = run(make(checkpoint, slots=2, device="cpu", compile="on"))
    finally:
        mx.enable_compile()
    for one, other in zip(compiled, run(make(checkpoint, slots=2, device="cpu")), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_failing_step_ends_its_own_rows_and_a_failing_device_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = make(load_checkpoint("echo"), slots=3, device="cpu")
    inputs = StepInputs(np.array([1], np.int32), np.array([False]), voice(1, 1, backend.info))

    def refuse(*_: object) -> None:
        raise ValueError("shapes do not broadcast")

    with monkeypatch.context() as patch:
        patch.setattr(executor_of(backend).mimi, "encode", refuse)
        with pytest.raises(StepError, match=r"rows \[1\] failed: ValueError: shapes") as failed:
            backend.step(inputs)
    assert failed.value.rows == (1,)
    assert backend.step(inputs).emitted.tolist() == [True]

    def break_off(*_: object) -> None:
        raise RuntimeError("[metal::malloc] no memory")

    with monkeypatch.context() as patch:
        patch.setattr(mx, "eval", break_off)
        with pytest.raises(DeviceLostError, match=r"could not compute a step: \[metal::malloc\] no memory"):
            backend.step(inputs)


def test_a_macs_gpu_has_as_much_memory_as_metal_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_bytes(mx.Device(mx.DeviceType.cpu)) == {}
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx.metal, "device_info", lambda: {"max_recommended_working_set_size": 17})
    assert device_bytes(mx.Device(mx.DeviceType.gpu)) == {"total": 17}


def test_it_takes_no_prompt_and_no_broken_file(tmp_path: Path) -> None:
    backend = make(load_checkpoint("echo"), slots=1, device="cpu")
    with pytest.raises(UnsupportedError, match="a codec model takes no prompt"):
        backend.prime(0, Prompt(np.zeros((2, 1), dtype=np.int32)))
    (tmp_path / "x.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointFormatError, match=r"x\.safetensors cannot be read"):
        load_arrays(tmp_path / "x.safetensors")


def test_compiled_ticks_have_few_sizes() -> None:
    assert [tick_size(rows, 6) for rows in range(1, 7)] == [1, 2, 4, 4, 6, 6]
    checkpoint = load_checkpoint("echo")
    plans = []
    for mode in ("on", "off"):
        backend = make(checkpoint, slots=6, device="cpu", compile=mode)
        plans.append([backend.plan(np.arange(rows, dtype=np.int32)) for rows in range(1, 7)])
    assert plans == [[1, 2, 4, 4, 6, 6], [1, 2, 3, 4, 5, 6]]
