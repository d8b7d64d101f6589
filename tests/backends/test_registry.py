from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from antiphon.backends import registry
from antiphon.backends.base import Backend
from antiphon.backends.host import HostBackend
from antiphon.backends.machine import Machine, detect_machine
from antiphon.backends.null import NullRows
from antiphon.backends.registry import (
    BACKENDS,
    device_of,
    graphs_command,
    make_backend,
    options_of,
    parse_backend_option,
    resolve_auto,
)
from antiphon.errors import ConfigError, MissingExtraError, UnsupportedError
from antiphon.install import antiphon_command, install_command
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import BackendFormat, CodecEntry, GraphFormat, Manifest
from antiphon.models.spec import PipelineKind
from tests.backends.subjects import null_spec


def codec_manifest(**parts: Any) -> Manifest:
    return Manifest(name="m", family="mimi", files={}, mimi=CodecEntry(8), **parts)


@pytest.fixture
def checkpoint() -> Checkpoint:
    return Checkpoint(null_spec(PipelineKind.CODEC), "null", Path(), {})


def test_a_backend_is_made_by_name_with_its_options(checkpoint: Checkpoint) -> None:
    backend = make_backend("null", checkpoint, slots=3, options={"step_ms": 2, "hold_gil": True})
    assert (backend.info.name, backend.info.slots, backend.info.spec) == ("null", 3, checkpoint.spec)


@pytest.mark.parametrize(
    ("backend", "device", "machine", "whole"),
    [
        ("torch", "cuda", Machine(has_cuda=True), "cuda:0"),
        ("torch", "cuda:0", Machine(has_cuda=True), "cuda:0"),
        ("torch", None, Machine(has_cuda=True), "cuda:0"),
        ("torch", None, Machine(), "cpu"),
        ("torch", "cuda:3", Machine(has_cuda=True), "cuda:3"),
        ("torch", "cpu", Machine(has_cuda=True), "cpu"),
        ("onnx", None, Machine(has_cuda=True), "cpu"),
        ("onnx", "cuda", Machine(has_cuda=True), "cuda:0"),
        ("torch", None, Machine(is_apple_silicon=True), "cpu"),
        ("mlx", None, Machine(is_apple_silicon=True), "gpu"),
        ("mlx", None, Machine(), "cpu"),
    ],
)
def test_a_device_has_one_whole_name(backend: str, device: str | None, machine: Machine, whole: str) -> None:
    assert device_of(backend, device, machine) == whole


def step_s(backend: Backend) -> float:
    assert isinstance(backend, HostBackend)
    assert isinstance(backend.executor, NullRows)
    return backend.executor.step_s


def test_a_manifests_options_are_the_backends_until_others_are_given(checkpoint: Checkpoint) -> None:
    formats = {
        "null": BackendFormat((), options={"step_ms": 7.0}),
        "torch": BackendFormat((), options={"x": 1}),
    }
    manifest = codec_manifest(backends=formats)
    checkpoint = replace(checkpoint, manifest=manifest)
    assert step_s(make_backend("null", checkpoint, slots=1)) == 0.007
    own = make_backend("null", checkpoint, slots=1, options={"step_ms": 2.0})
    assert step_s(own) == 0.002


@pytest.mark.parametrize("name", BACKENDS)
def test_every_line_of_the_table_names_a_factory_and_its_options(name: str) -> None:
    entry = registry.backend_entry(name)
    module, _, function = entry.factory.partition(":")
    factory = getattr(__import__(module, fromlist=[function]), function)
    parameters = set(
        factory.__code__.co_varnames[: factory.__code__.co_argcount + factory.__code__.co_kwonlyargcount]
    )
    assert parameters == {"checkpoint", "slots", "device", *entry.options}


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("nul", {}, "no backend is called 'nul'; did you mean 'null'?"),
        ("zzz", {}, "no backend is called 'zzz'; there are: auto, mlx, null, onnx, pocket, reference, torch"),
        ("null", {"step_mss": 1.0}, "backend null has no option 'step_mss'; did you mean 'step_ms'?"),
        ("null", {"zzz": 1.0}, "backend null has no option 'zzz'; there are: hold_gil, step_ms"),
        ("null", {"step_ms": "5"}, "option step_ms of backend null is '5', a number is needed"),
        ("null", {"step_ms": True}, "option step_ms of backend null is true or false, a number is needed"),
        ("null", {"hold_gil": 1}, "option hold_gil of backend null is 1, true or false is needed"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(
    checkpoint: Checkpoint, name: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_backend(name, checkpoint, slots=1, options=options)
    assert str(caught.value) == sentence


PLAIN, GPU, APPLE = Machine(), Machine(has_cuda=True), Machine(is_apple_silicon=True)


def with_graphs(checkpoint: Checkpoint) -> Checkpoint:
    graphs = {"encode": GraphFormat("onnx.encode", 20, (), ())}
    return replace(checkpoint, manifest=codec_manifest(graphs=graphs))


@pytest.mark.parametrize(
    ("machine", "has_graphs", "missing", "wanted"),
    [
        (GPU, True, (), "torch"),
        (GPU, True, ("torch",), "onnx"),
        (APPLE, True, (), "mlx"),
        (APPLE, True, ("mlx",), "onnx"),
        (APPLE, False, ("mlx",), "torch"),
        (PLAIN, True, (), "onnx"),
        (PLAIN, True, ("torch", "moshi", "mlx"), "onnx"),
        (PLAIN, False, ("moshi",), "torch"),
        (PLAIN, True, ("onnxruntime",), "torch"),
    ],
)
def test_auto_takes_what_suits_the_machine_and_the_model(
    checkpoint: Checkpoint, machine: Machine, has_graphs: bool, missing: tuple[str, ...], wanted: str
) -> None:
    checkpoint = with_graphs(checkpoint) if has_graphs else checkpoint
    found = resolve_auto(
        checkpoint, find=lambda module: None if module in missing else object(), machine=machine
    )
    assert found == wanted


@pytest.mark.parametrize("name", ["torch", "mlx"])
@pytest.mark.parametrize("machine", [PLAIN, GPU, APPLE])
def test_what_was_rounded_for_one_backend_is_for_that_one(
    checkpoint: Checkpoint, name: str, machine: Machine
) -> None:
    rounded = replace(checkpoint, manifest=codec_manifest(backends={name: BackendFormat(())}))
    assert resolve_auto(rounded, find=lambda module: object(), machine=machine) == name


def test_without_its_published_weights_a_model_runs_from_its_graphs() -> None:
    whole = load_checkpoint("tiny")
    bare = replace(whole, absent={"lm": "model.safetensors"})
    assert resolve_auto(whole, find=lambda module: object(), machine=GPU) == "torch"
    assert resolve_auto(bare, find=lambda module: object(), machine=GPU) == "onnx"


def test_without_a_driver_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> NoReturn:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert not detect_machine().has_cuda


def of_kind(checkpoint: Checkpoint, kind: PipelineKind) -> Checkpoint:
    return replace(checkpoint, spec=replace(checkpoint.spec, name="m", kind=kind))


def test_auto_takes_only_a_backend_that_runs_the_pipeline(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(BACKENDS["torch"], kinds=(PipelineKind.STT,))
    monkeypatch.setattr(registry, "BACKENDS", {**BACKENDS, "torch": entry})
    assert resolve_auto(checkpoint, find=lambda module: object(), machine=GPU) == "reference"
    assert resolve_auto(of_kind(checkpoint, PipelineKind.STT), find=lambda module: object()) == "torch"
    with pytest.raises(UnsupportedError, match="no backend runs tts models, and m is one"):
        resolve_auto(of_kind(checkpoint, PipelineKind.TTS), find=lambda module: object())


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        (
            "reference",
            PipelineKind.STT,
            "the reference backend runs codec and duplex models, m is stt; the backend for it is torch or "
            "mlx or onnx",
        ),
        (
            "reference",
            PipelineKind.TTS,
            "the reference backend runs codec and duplex models, m is tts; the backend for it is torch or "
            "mlx or onnx",
        ),
    ],
)
def test_a_backend_for_another_pipeline_names_the_one_that_runs_it(
    checkpoint: Checkpoint, name: str, kind: PipelineKind, sentence: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        make_backend(name, of_kind(checkpoint, kind), slots=1)
    assert str(caught.value) == sentence


def with_format(checkpoint: Checkpoint, name: str, wanted: BackendFormat) -> Checkpoint:
    return replace(checkpoint, manifest=codec_manifest(backends={name: wanted}))


def test_what_a_manifest_requires_is_checked(checkpoint: Checkpoint) -> None:
    wanted = BackendFormat((), requires={"numpy": "99.1"})
    with pytest.raises(UnsupportedError, match=r"on the null backend needs numpy 99.1, but \d"):
        make_backend("null", with_format(checkpoint, "null", wanted), slots=1)
    assert make_backend("null", with_format(checkpoint, "torch", wanted), slots=1).info.slots == 1


def test_a_manifests_dtype_is_an_option_where_there_is_a_choice(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(
        BACKENDS["null"], factory="tests.backends.test_registry:make_noted", options={"dtype": str}
    )
    monkeypatch.setattr(registry, "BACKENDS", {"noted": entry, "null": BACKENDS["null"]})
    wanted = BackendFormat((), dtype="bfloat16")
    for options, dtype in ((None, "bfloat16"), ({"dtype": "float32"}, "float32")):
        noted = make_backend("noted", with_format(checkpoint, "noted", wanted), slots=1, options=options)
        assert noted.info.dtype == dtype
    assert make_backend("null", with_format(checkpoint, "null", wanted), slots=1).info.dtype == "float32"


def make_noted(checkpoint: Checkpoint, *, slots: int, device: str | None, dtype: str) -> HostBackend:
    rows = NullRows(checkpoint.spec)
    rows.facts = replace(rows.facts, dtype=dtype)
    return HostBackend(checkpoint.spec, rows, slots=slots)


GRAPHS = antiphon_command("quantize --target onnx --recipe float32 --model null ./null-codec-onnx")


def test_auto_says_how_to_get_what_it_lacks(checkpoint: Checkpoint) -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve_auto(checkpoint, find=lambda module: None)
    assert str(caught.value) == (
        "nothing installed runs null codec: it has no ONNX graphs, and the torch backend lacks the Python "
        f"module 'torch'. To make the graphs: {install_command('quantize')} and {GRAPHS}. "
        "To run it as it is: "
        f"{install_command('torch')}"
    )
    with pytest.raises(MissingExtraError, match=r"the onnx backend needs the Python module 'onnxruntime'"):
        resolve_auto(with_graphs(checkpoint), find=lambda module: None, machine=PLAIN)


def test_the_command_that_makes_graphs_is_typed_as_it_is(checkpoint: Checkpoint) -> None:
    command = graphs_command(replace(checkpoint, ref="./my model; v2"))
    assert shlex.split(command)[-3:] == ["--model", "./my model; v2", "./null-codec-onnx"]


def test_the_onnx_backend_says_how_graphs_are_made(checkpoint: Checkpoint) -> None:
    with pytest.raises(UnsupportedError) as caught:
        make_backend("onnx", checkpoint, slots=1)
    assert str(caught.value) == (
        "null codec has no ONNX graphs; make them with: "
        f"{GRAPHS} (which needs: {install_command('quantize')})"
    )


def test_a_backend_asked_for_by_name_says_the_same(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.BackendEntry("nowhere:make", extra="reference", modules=("no_such_module_here",))
    monkeypatch.setattr(registry, "BACKENDS", {"elsewhere": entry})
    with pytest.raises(
        MissingExtraError, match=r"elsewhere backend needs.*'no_such_module_here'.*\[reference\]'"
    ):
        make_backend("elsewhere", checkpoint, slots=1)


def test_the_registry_and_the_null_backend_import_no_framework() -> None:
    code = (
        "import sys, antiphon.backends.registry, antiphon.backends.null; "
        "print(sorted({'torch', 'moshi', 'onnxruntime', 'mlx'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("dtype=bfloat16", ("dtype", "bfloat16")),
        ("threads=2", ("threads", 2)),
        ("scale=0.5", ("scale", 0.5)),
        ("fast=true", ("fast", True)),
        ("fast=false", ("fast", False)),
        ("path=a=b", ("path", "a=b")),
    ],
)
def test_backend_options(text: str, parsed: tuple[str, object]) -> None:
    name, value = parse_backend_option(text)
    assert (name, value) == parsed
    assert type(value) is type(parsed[1])


def test_a_backend_option_without_a_value() -> None:
    with pytest.raises(ConfigError, match="backend_option = 'dtype' is not NAME=VALUE"):
        parse_backend_option("dtype")


def test_a_backend_option_may_name_its_backend() -> None:
    given = ("onnx.threads=4", "onnx.spin=false", "torch.threads=3", "threads=2")
    assert options_of("onnx", given) == {"threads": 4, "spin": False}
    assert options_of("torch", given) == {"threads": 3}
    assert options_of("pocket", given) == {"threads": 2}
    with pytest.raises(ConfigError, match="no backend is called 'onx'; did you mean 'onnx'"):
        options_of("torch", ("onx.spin=false",))


def test_an_option_of_a_backend_that_does_not_run_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="backend onnx has no option 'spinn'; did you mean 'spin'"):
        options_of("torch", ("onnx.spinn=false",))
    with pytest.raises(ConfigError, match="option spin of backend onnx is 'no', true or false is needed"):
        options_of("torch", ("onnx.spin=no",))
