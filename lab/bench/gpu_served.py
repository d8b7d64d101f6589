"""The step "served" of ``lab.bench.gpu_session``: `antiphon serve` on a folder of the model's published
layout and size with random weights, and Opus calls by `antiphon probe` on the same machine.

It needs the server's packages, psutil and moshi. Rings are as full as the calls are long: a quarter after a
minute. Random weights speak noise, which Opus encodes more slowly than speech.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from antiphon.models.published import MIMI_NAME, MOSHI_NAME, TOKENIZER_NAME
from lab.bench.gpu_card import Task, Values, device, note
from lab.bench.gpu_models import Size, fill_randomly

PIECES = 256
"""Pieces of the tokenizer: other tokens have no words."""
FRONT_ENDS = 4
SECONDS, SMALL_SECONDS = 40.0, 2.0
INT8 = ("--backend-option", "weights=int8", "--backend-option", "kv=int8")


def make_folder(folder: Path, size: Size) -> None:
    """Write a checkpoint with random weights: the language model in bfloat16, Mimi in float32.

    Raises:
        ImportError: moshi or sentencepiece is not installed.
    """
    loaders: Any = import_module("moshi.models.loaders")
    make: Any = import_module("tests.support.make_checkpoint")
    folder.mkdir(parents=True, exist_ok=True)
    arguments, mimi_arguments = json.loads(json.dumps([{**size.lm}, {**size.mimi}]))
    with torch.no_grad():
        lm = loaders.get_moshi_lm(None, arguments, device=device(), dtype=torch.bfloat16)
        mimi = loaders.get_mimi(None, mimi_arguments, device=device(), num_codebooks=size.codebooks)
        for module, name in ((lm, MOSHI_NAME), (mimi, MIMI_NAME)):
            fill_randomly(module)
            tensors = module.state_dict()
            save_file(make.published_names(tensors) if module is lm else tensors, folder / name)
    (folder / TOKENIZER_NAME).write_bytes(make.train_tokenizer(PIECES))
    (folder / "mimi_config.json").write_text(json.dumps({**size.mimi}))
    names = {
        "moshi_name": MOSHI_NAME, "mimi_name": MIMI_NAME, "mimi_config_name": "mimi_config.json",
        "tokenizer_name": TOKENIZER_NAME,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**size.lm, **names}))


def served(task: Task) -> Values:
    """Serve the model with ``slots=auto``, with as many calls as it promises, ``task.batch`` at most.

    Returns the seconds until the folder was written and the server ready, the promised calls, the report of
    the probe, and the cores that the server took.
    """
    try:
        harness: Any = import_module("lab.bench.harness")
        start_s, folder = time.perf_counter(), task.out / "model"
        try:
            make_folder(folder, task.size)
            if device().type == "cuda":
                torch.cuda.empty_cache()
            found = Values(written_s=time.perf_counter() - start_s)
            note(found)
            return found | _called(task, harness, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except ImportError as error:
        return {"left_out": str(error)}


def _called(task: Task, harness: Any, folder: Path) -> Values:
    form = () if task.bits == 16 else INT8
    named = ("--model", str(folder), "--backend", "torch", "--device", device().type)
    several = ("--front-ends", str(FRONT_ENDS), "--slots", "2" if task.is_small else "auto")
    start_s, found = time.perf_counter(), Values()
    command = harness.serve_command(*named, *several, *form)
    with harness.running_server(command, task.out / "served.log") as server:
        found["ready_s"] = time.perf_counter() - start_s
        with urllib.request.urlopen(f"{server.url}/api/models") as answer:
            found["promised"] = json.load(answer)["models"][0]["slots"]["total"]
        note(found)
        calls, seconds = min(task.batch, found["promised"]), SMALL_SECONDS if task.is_small else SECONDS
        begun_s, used_s = time.perf_counter(), server.cpu_s()
        report = harness.probe(
            server.url, "--sessions", str(calls), "--seconds", f"{seconds:g}", "--processes", "4"
        )["report"]
        cores = (server.cpu_s() - used_s) / (time.perf_counter() - begun_s)
    counts, latency_ms = report["counts"], report["times"]["latency"]
    return found | {"calls": calls, "counts": counts, "latency_ms": latency_ms, "cores": cores}
