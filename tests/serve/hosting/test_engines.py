"""From configured models to running engines: names, settings and failures."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from antiphon import __version__
from antiphon.agent.config import AgentConfig, TextModelConfig
from antiphon.backends import registry
from antiphon.config import ModelConfig, ServerConfig
from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.sizing import DeviceShare
from antiphon.errors import AntiphonError, CheckpointDigestError, CheckpointNotFoundError, ConfigError
from antiphon.ipc.client_context import Loop
from antiphon.metrics import MetricFamilies
from antiphon.models.catalog import builtin_folder, load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.serve.hosting import engines
from antiphon.serve.hosting.engines import backend_factory, describe, lines_of, running_engines
from antiphon.serve.hosting.main import front_ends_of
from antiphon.serve.hosting.model_names import name_models
from antiphon.serve.hosting.one_process import serve_here
from antiphon.serve.hosting.processes import banner
from antiphon.serve.hosting.served import ServedModel
from tests.engine.bench import NowLoop
from tests.engine.fakes import FakeBackend


def no_progress(done: int, total: int, what: str) -> None:
    """Show nothing."""


def nothing_lost(error: AntiphonError) -> None:
    raise AssertionError(error)


def engine_threads() -> int:
    return sum(thread.name == "antiphon-engine" for thread in threading.enumerate())


@contextmanager
def run(config: ServerConfig) -> Iterator[list[ServedModel]]:
    families = MetricFamilies(CollectorRegistry())
    with running_engines(
        config, families, on_lost=nothing_lost, tracer=None, progress=no_progress
    ) as running:
        yield serve_here(running, families, cast("Loop", NowLoop()))


def test_each_entry_is_served_as_it_says_and_ends_with_the_others() -> None:
    config = ServerConfig(
        models=(
            ModelConfig(model="echo", backend="null", slots=2),
            ModelConfig(model="tiny", name="talk", backend="null", slots=3),
            ModelConfig(model="echo", name="echo-2", backend="null", backend_option=("step_ms=1",), slots=1),
        )
    )
    before = engine_threads()
    with run(config) as models:
        assert engine_threads() == before + 3
        assert [(model.name, model.engine.info.slots) for model in models] == [
            ("echo", 2),
            ("talk", 3),
            ("echo-2", 1),
        ]
        assert [model.kind for model in models] == ["codec", "duplex", "codec"]
    assert engine_threads() == before
    assert not any(model.engine.health().alive for model in models)


def test_a_file_that_is_not_its_manifests_is_refused_before_any_engine_starts(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(builtin_folder("tiny"), folder)
    graph = folder / "decode.onnx"
    content = bytearray(graph.read_bytes())
    content[-1] ^= 1  # the size is right
    graph.write_bytes(content)
    options: dict[str, Any] = {"model": (str(folder),), "backend": "null", "engine": EngineConfig(slots=1)}
    before = engine_threads()
    with pytest.raises(CheckpointDigestError, match="--skip-digests"), run(ServerConfig(**options)):
        pass
    assert engine_threads() == before
    with run(ServerConfig(skip_digests=True, **options)) as models:
        assert models[0].name == "tiny"


def test_an_agent_without_its_models_is_refused_before_any_engine_starts() -> None:
    agent = AgentConfig(name="aide", text_models=(TextModelConfig(llm="http://127.0.0.1:9/v1"),))
    config = ServerConfig(model=("echo",), backend="null", engine=EngineConfig(slots=1), agents=(agent,))
    before = engine_threads()
    families = MetricFamilies(CollectorRegistry())
    refused = pytest.raises(ConfigError, match="'aide' needs one stt model, and there are 0: none")
    with refused, running_engines(config, families, on_lost=nothing_lost, tracer=None, progress=no_progress):
        assert engine_threads() == before, "an engine was started"


def test_the_banner_names_the_files_by_their_manifest() -> None:
    with run(ServerConfig(model=("echo",), backend="null", engine=EngineConfig(slots=1))) as (model,):
        digest = hashlib.sha256((builtin_folder("echo") / "antiphon.json").read_bytes()).hexdigest()
        line = describe(model.name, model.engine.info, model.checkpoint)
        assert line.endswith(f" on null/cpu, 1 slot, files {digest[:12]}")
        used = replace(model.engine.info, threads="2 threads, sleeping; no stage in parts")
        assert " on null/cpu (2 threads, sleeping; no stage in parts), 1 slot" in describe(
            model.name, used, model.checkpoint
        )


def test_the_banner_names_the_cost_of_missing_instructions() -> None:
    with run(ServerConfig(model=("echo",), backend="null", engine=EngineConfig(slots=1))) as (model,):
        graphs = replace(model.engine.info, name="onnx")
        line = describe("echo", graphs, model.checkpoint, cpu="AVX2 without VNNI")
        assert line.endswith("; AVX2 without VNNI: INT8 and INT4 take 1.2 to 1.7 times as long as with VNNI")
        assert "VNNI" not in describe("echo", graphs, model.checkpoint, cpu="AVX-512 VNNI")
        assert "VNNI" not in describe("echo", model.engine.info, model.checkpoint, cpu="AVX2 without VNNI")


def test_few_slots_of_auto_are_named_with_their_cure() -> None:
    note = "slots = auto chose 1; if the machine was busy at the start, start again, or give --slots N"
    config = ServerConfig(model=("echo",), backend="null", null_step_ms=90.0)
    families = MetricFamilies(CollectorRegistry())
    with running_engines(config, families, on_lost=nothing_lost, tracer=None, progress=no_progress) as (
        running,
    ):
        engine = running.engine
        assert engine.health().detail == engine.note == note
        line = describe("echo", engine.info, running.checkpoint, engine.note)
        assert line.endswith(f"; {note}")
        version, name, *more, address = banner([line], config, 8998).splitlines()
        assert (version, address) == (f"antiphon {__version__}", "http://127.0.0.1:8998   Ctrl-C stops")
        assert name.startswith("  echo (codec, 2.9 M) on null/cpu, 1 slot, files ")
        assert all(len(it) <= 80 and it.startswith("    ") for it in more)
    with run(ServerConfig(model=("echo",), backend="null", engine=EngineConfig(slots=1))) as (model,):
        assert model.engine.health().detail == "ok"


def test_what_slots_of_auto_count_is_in_the_banner_once() -> None:
    config = ServerConfig(model=("echo", "tiny"), backend="null", engine=EngineConfig(slots=1))
    families = MetricFamilies(CollectorRegistry())
    with running_engines(config, families, on_lost=nothing_lost, tracer=None, progress=no_progress) as models:
        for model in models:
            model.engine.assumed = "slots = auto counts 1 ms"
        first, second, *more = lines_of(models)
        assert (first.split()[0], second.split()[0], more) == ("echo", "tiny", ["slots = auto counts 1 ms"])
        assert lines_of(models, number=1) == [first, second], "the process of the first device has said it"
        models[1].engine.assumed = ""
        assert lines_of(models)[2:] == more


def test_models_share_a_gpu_by_whatever_name_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two on the first GPU, one of them by "cuda" alone, and one on the second: each knows with whom."""
    shares: list[DeviceShare] = []

    class NotedEngine(Engine):
        def __init__(self, *arguments: Any, share: DeviceShare, **options: Any) -> None:
            shares.append(share)
            super().__init__(*arguments, share=share, **options)

    def made(*_: object, device: str, slots: int, **__: object) -> FakeBackend:
        return FakeBackend(slots=slots, memory={"weights": 100, "state_per_row": 10}, device=device)

    monkeypatch.setattr(engines, "Engine", NotedEngine)
    monkeypatch.setattr(registry, "import_module", lambda _: SimpleNamespace(make=made))
    entries = [
        ModelConfig(model="echo", name=f"echo-{number}", backend="null", device=device, slots=2)
        for number, device in enumerate(("cuda", "cuda:0", "cuda:1"))
    ]
    with run(ServerConfig(models=tuple(entries))):
        pass
    assert [(share.models, share.models_waiting) for share in shares] == [(2, 2), (2, 1), (1, 1)]
    assert [share.taken_bytes.get("cuda:0", 0) for share in shares] == [0, 120, 240]


def test_auto_slots_of_several_share_the_machine() -> None:
    """One alone gets all the rows it may have; of two each has to leave half of the time."""
    engine = EngineConfig(max_slots=16)
    options: dict[str, Any] = {"backend": "null", "null_step_ms": 1.0, "engine": engine}
    with run(ServerConfig(model=("echo",), **options)) as models:
        assert models[0].engine.info.slots == 16
    with run(ServerConfig(model=("echo", "tiny"), **options)) as models:
        assert [model.engine.info.slots for model in models] == [16, 16]
    options["null_step_ms"] = 22.0  # well between the two limits: a busy machine makes steps longer
    with run(ServerConfig(model=("echo",), **options)) as models:
        assert models[0].engine.info.slots == 16
    with run(ServerConfig(model=("echo", "tiny"), **options)) as models:
        assert [model.engine.info.slots for model in models] == [1, 1]


@pytest.mark.parametrize(
    ("models", "options", "asked"),
    [
        (("echo",), (), None),
        (("echo", "tiny"), (), False),
        (("echo", "tiny"), ("spin=true",), True),
        (("echo",), ("onnx.spin=false",), False),
        (("echo",), ("torch.dtype=float32",), None),
    ],
)
def test_models_that_share_the_cores_do_not_spin(
    monkeypatch: pytest.MonkeyPatch, models: tuple[str, ...], options: tuple[str, ...], asked: bool | None
) -> None:
    seen: list[Any] = []

    def made(name: str, checkpoint: Checkpoint, *, options: dict[str, Any], **_: Any) -> None:
        seen.append((name, options.get("spin"), sorted(options.keys() - {"spin"})))

    monkeypatch.setattr("antiphon.serve.hosting.engines.make_backend", made)
    config = ServerConfig(model=models, backend="onnx", backend_option=options)
    for entry in config.served:
        backend_factory(config, entry, load_checkpoint(entry.model))(1)
    assert seen == [("onnx", asked, [])] * len(models)


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (3, 1), (8, 6)])
def test_front_ends_are_the_cores_that_engines_leave(
    monkeypatch: pytest.MonkeyPatch, cores: int, count: int
) -> None:
    monkeypatch.setattr("antiphon.serve.hosting.main.usable_cores", lambda: cores)
    assert front_ends_of(ServerConfig(model=("echo", "tiny"), front_ends=None), platform="linux") == count


@pytest.mark.parametrize(
    "broken",
    [
        {"backend_option": ("speed=2",)},
        {"backend": "none"},
        {"voices": "/nowhere/voices"},
    ],
)
def test_a_model_that_cannot_be_served_ends_those_before_it(broken: dict[str, Any]) -> None:
    first = ModelConfig(model="echo", backend="null", slots=1)
    second = ModelConfig(**{"model": "tiny", "backend": "null", "slots": 1, **broken})
    before = engine_threads()
    with pytest.raises(ConfigError), run(ServerConfig(models=(first, second))):
        raise AssertionError("served")
    assert engine_threads() == before


def test_two_models_of_one_name() -> None:
    twice = "two models are called 'echo'; give them different names, as entries of [[models]] in a file"
    with pytest.raises(ConfigError) as refused:
        name_models(ServerConfig(model=("echo", "echo")).served)
    assert str(refused.value) == twice
    named = ModelConfig(model="tiny", name="echo")
    with pytest.raises(ConfigError, match="two models are called 'echo'"):
        name_models([ModelConfig(model="echo"), named])


def test_every_checkpoint_is_looked_at_before_the_first_engine_starts(tmp_path: Path) -> None:
    before = engine_threads()
    config = ServerConfig(model=("echo", str(tmp_path / "none")), backend="null")
    with pytest.raises(CheckpointNotFoundError), run(config):
        raise AssertionError("served")
    assert engine_threads() == before
