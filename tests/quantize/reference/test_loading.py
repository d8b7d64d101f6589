from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moshi.models.lm import LMModel

from antiphon.backends.host import HostBackend
from antiphon.backends.machine import model_threads
from antiphon.errors import CheckpointFormatError, ConfigError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import PipelineKind
from antiphon_quantize.reference import backend as reference
from antiphon_quantize.reference.backend import ReferenceExecutor, make
from antiphon_quantize.reference.duplex import DuplexLM
from tests.backends.contract import GREEDY, Driver, assert_same, voice
from tests.quantize.reference.upstream import DESCRIBED
from tests.support.make_checkpoint import make_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def moshi(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(str(make_checkpoint(tmp_path_factory.mktemp("loading") / "moshi")))


def test_the_facts_count_weights_and_state(moshi: Checkpoint) -> None:
    info = make(moshi, slots=3, device="cpu").info
    assert (info.name, info.device, info.dtype) == ("reference", "cpu", "float32")
    assert info.versions == {"moshi": "0.2.13", "torch": torch.__version__}
    assert moshi.spec.lm is not None
    lm = moshi.spec.lm
    rings = 4 * 2 * lm.context * lm.dim * lm.num_layers  # float32 keys and values of the language model
    assert info.memory["state_per_row"] > rings
    assert make(moshi, slots=1, device="cpu").info.memory["state_per_row"] == info.memory["state_per_row"]
    assert info.memory["weights"] > 4 * 0.9 * moshi.spec.parameters


def test_the_number_of_rows_can_change(moshi: Checkpoint) -> None:
    backend = make(moshi, slots=1, device="cpu")
    driver, frames = Driver(backend), voice(1, 6, backend.info)
    backend.set_parameters(0, GREEDY)
    wanted = driver.run(0, frames)
    backend.resize(3)
    backend.set_parameters(2, GREEDY)
    assert (backend.info.slots, backend.plan(np.array([2], np.int32))) == (3, 3)
    assert_same(driver.run(2, frames), wanted, tolerance=2e-6)


def test_the_language_model_runs_in_the_dtype_asked_for(moshi: Checkpoint) -> None:
    backend = make(moshi, slots=1, device="cpu", dtype="bfloat16")
    assert backend.info.dtype == "bfloat16"
    replies = Driver(backend).run(0, voice(1, 3, backend.info))
    assert [reply.emitted for reply in replies] == [False, True, True]


def test_the_number_of_threads_is_set(moshi: Checkpoint) -> None:
    make(moshi, slots=1, device="cpu", threads=2)
    assert torch.get_num_threads() == 2
    make(moshi, slots=1, device="cpu")
    assert torch.get_num_threads() == model_threads()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "gpux"}, "no device is called 'gpux'"),
        ({"dtype": "int3"}, "no dtype is called 'int3'; there are: float32, bfloat16, float16"),
        ({"slots": 0}, "a backend needs at least 1 slot, not 0"),
        ({"threads": 0}, "threads is 0; a model needs at least 1"),
        ({"threads": -2}, "threads is -2; a model needs at least 1"),
    ],
)
def test_wrong_options_are_refused(moshi: Checkpoint, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make(moshi, **{"slots": 1, "device": "cpu", **options})


@pytest.mark.parametrize("kind", [PipelineKind.STT, PipelineKind.TTS])
def test_other_pipelines_are_refused(moshi: Checkpoint, kind: PipelineKind) -> None:
    other = replace(moshi, spec=replace(moshi.spec, kind=kind))
    with pytest.raises(UnsupportedError, match=f"runs codec and duplex models, not {kind}"):
        make(other, slots=1)


def test_a_model_that_hears_nothing_is_refused(moshi: Checkpoint) -> None:
    assert moshi.spec.lm is not None
    deaf = replace(moshi, spec=replace(moshi.spec, lm=replace(moshi.spec.lm, dep_q=16)))
    with pytest.raises(UnsupportedError, match="input and output streams, this one has 0 and 16"):
        make(deaf, slots=1, device="cpu")


def test_upstreams_broken_int8_is_refused(moshi: Checkpoint) -> None:
    assert moshi.spec.lm is not None
    lm = replace(moshi.spec.lm, config={**moshi.spec.lm.config, "quantize": True})
    with pytest.raises(UnsupportedError, match="cannot load its own INT8 checkpoints"):
        reference.load_lm(replace(moshi, spec=replace(moshi.spec, lm=lm)), CPU, torch.float32)


def test_a_checkpoint_without_the_file_is_refused(moshi: Checkpoint) -> None:
    with pytest.raises(CheckpointFormatError, match="no file for 'mimi'"):
        make(replace(moshi, files={"lm": Path("somewhere")}), slots=1, device="cpu")


def test_hibiki_hears_an_early_end_as_padding(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(make_checkpoint(tmp_path, kind="hibiki")))
    model = reference.load_lm(checkpoint, CPU, torch.float32)
    embeddings = model.text_emb.weight
    assert torch.equal(embeddings[2], embeddings[3])
    assert not torch.equal(embeddings[1], embeddings[3])


def test_a_model_conditioned_by_something_unknown_is_refused(tmp_path: Path) -> None:
    described = make_checkpoint(tmp_path, kind="moshi", **DESCRIBED)
    with pytest.raises(UnsupportedError, match="model type moshi is not supported"):
        make(load_checkpoint(str(described)), slots=1, device="cpu")


def test_steps_of_the_depformer_that_nobody_hears_change_nothing(tmp_path: Path) -> None:
    """PersonaPlex has 16 depformer steps and speaks with 8: a model cut down to those 8 says the same."""
    checkpoint = load_checkpoint(str(make_checkpoint(tmp_path / "whole", kind="personaplex")))
    assert checkpoint.spec.lm is not None
    assert (checkpoint.spec.lm.dep_q, checkpoint.spec.lm.depformer_steps) == (8, 16)
    whole = reference.load_lm(checkpoint, CPU, torch.float32)
    arguments = {**checkpoint.spec.lm.config, "dep_q": 8}
    cut = LMModel(**arguments, device=CPU, dtype=torch.float32).eval()
    missing = cut.load_state_dict(whole.state_dict(), strict=False).missing_keys
    assert missing == []

    runs = []
    for model in (whole, cut):
        mimi = reference.load_mimi(checkpoint, CPU)
        executor = ReferenceExecutor(checkpoint.spec, mimi, DuplexLM(model, checkpoint.spec.lm))
        backend = HostBackend(checkpoint.spec, executor, slots=1)
        backend.set_parameters(0, GREEDY)
        runs.append(Driver(backend).run(0, voice(1, 30, backend.info)))
    assert_same(runs[0], runs[1])
