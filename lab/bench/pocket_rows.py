"""Measures Pocket-TTS with several callers: its own package, our rows one after the other, and our rows
together.

    python -m lab.bench.pocket_rows                    english (90 M) at 1, 2, 4 and 8 callers, one thread
    python -m lab.bench.pocket_rows --shape english_18m_2026-10
    python -m lab.bench.pocket_rows --graphs ./pocket-onnx   also its ONNX graphs, on one and two threads
    python -m lab.bench.pocket_rows --quick            a small model, to see that it works

Weights are random and of the package's shapes. The two ways of ours take turns, frame by frame of the same
utterances. The package speaks one utterance at a time, so several callers of it wait for one another: its
time is that of one caller, times their number. It decodes in a second thread.

Graphs are of the same shape (``antiphon quantize --target onnx --model out/bench/pocket-english``). Whole
steps of the backend ``onnx`` and of the backend ``pocket`` take turns then. Times of the clock and of the
processor are measured: other work on the machine lengthens the first more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from antiphon.backends.base import Backend, StepInputs, TextEntry
from antiphon.backends.pocket.backend import PocketBackend
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.sampling import SamplingParameters
from lab.bench.harness import Results, Values, machine_line, tell, warn_if_busy
from lab.bench.pages import write_page
from lab.bench.turns import summary
from tests.support.make_pocket_checkpoint import make_pocket_checkpoint

CALLERS: Final = (1, 2, 4, 8)
THREADS: Final = (1, 2)
FRAMES: Final = 24
FRAME_MS: Final = 80
UNTIMED: Final = 2
TEXT: Final = "One two three four five, six seven eight nine ten, and all the others that come after them."


def measure_rows(backend: PocketBackend, callers: int, frames: int) -> Values:
    """Time frames of ``callers`` callers, row by row and all rows together, alternately; also returns how far
    the sounds of the two ways differ."""
    rows, times = range(callers), {"apart": list[float](), "together": list[float]()}
    advance = backend.executor.advance
    begin(backend, rows)
    nothing: list[tuple[TextEntry, ...]] = [()] * callers
    ways: dict[str, Callable[[], object]] = {
        "apart": lambda: [advance([row], [()]) for row in rows],
        "together": lambda: advance(list(rows), nothing),
    }
    for frame in range(2 * frames + UNTIMED):
        way = list(ways)[frame % 2]
        if any(backend.executor.rows[row].speaker.is_finished for row in rows):
            begin(backend, rows)  # random weights end a sentence when they like
        start_s = time.perf_counter()
        backend.executor.workers.submit(ways[way]).result()
        if frame >= UNTIMED:
            times[way].append(1000 * (time.perf_counter() - start_s))
    return {way: summary(found) for way, found in times.items()} | {"apart_by": differ(backend, callers)}


def begin(backend: PocketBackend, rows: Sequence[int]) -> None:
    """Start a sentence in each row, with its own noise, and compute its first frame."""
    executor = backend.executor
    executor.reset(list(rows))
    for row in rows:
        executor.set_parameters(row, SamplingParameters(audio_seed=row))
        executor.rows[row].speaker.add((TextEntry((1,), TEXT, is_last=True),))
    for row in rows:
        executor.workers.submit(executor.advance, [row], [()]).result()


def differ(backend: PocketBackend, callers: int) -> float:
    """Return the largest difference of a sample between rows computed together and separately, over a few
    frames."""
    rows, executor = range(callers), backend.executor
    said = []
    for groups in ([[row] for row in rows], [list(rows)]):
        begin(backend, rows)
        frames = [
            frame.pcm
            for _ in range(8)
            for group in groups
            for _, frame in executor.workers.submit(executor.advance, group, [()] * len(group)).result()
            if frame is not None
        ]
        said.append(np.concatenate(frames))
    return float(np.abs(said[0] - said[1]).max())


def measure_package(folder: Path, sentences: int) -> Values:
    """Measure the milliseconds of a frame with Pocket-TTS's own package and one caller."""
    from pocket_tts import TTSModel

    torch.set_num_threads(1)  # as the package's own import leaves it
    model: Any = TTSModel.load_model(config=absolute(folder))
    state = model.get_state_for_audio_prompt(str(folder / "voices" / "calm.safetensors"))
    times = []
    for turn in range(sentences + 1):
        start_s = time.perf_counter()
        audio = model.generate_audio(state, TEXT)
        spent_ms = 1000 * (time.perf_counter() - start_s)
        if turn:
            times.append(spent_ms / (audio.shape[-1] / model.sample_rate * 1000 / FRAME_MS))
    return summary(times)


def measure_graphs(backends: Mapping[str, Backend], callers: int, frames: int) -> Values:
    """Time steps of ``callers`` callers, alternating between backends, without the beginnings of
    sentences."""
    times: dict[str, list[float]] = {name: [] for name in backends}
    spent: dict[str, list[float]] = {name: [] for name in backends}
    is_over = dict.fromkeys(backends, True)
    for turn in range((frames + UNTIMED) * len(backends)):
        name = list(backends)[turn % len(backends)]
        if is_over[name]:  # random weights end a sentence when they like
            is_over[name] = step(backends[name], callers, begins=True)
        start_s, cpu_s = time.perf_counter(), time.process_time()
        is_over[name] = step(backends[name], callers, begins=False)
        if turn >= UNTIMED * len(backends):
            times[name].append(1000 * (time.perf_counter() - start_s))
            spent[name].append(1000 * (time.process_time() - cpu_s))
    return {name: {"clock": summary(times[name]), "processor": summary(spent[name])} for name in backends}


def step(backend: Backend, callers: int, *, begins: bool) -> bool:
    """Compute one frame of every caller, of a new or the current sentence; returns whether a sentence has
    finished."""
    rows = np.arange(callers, dtype=np.int32)
    text = ((TextEntry((1,), TEXT, is_last=True),),) * callers if begins else ((),) * callers
    outputs = backend.step(StepInputs(rows, np.full(callers, begins), None, text))
    assert outputs.finished is not None
    return bool(outputs.finished.any())


def make_model(folder: Path, shape: str | None) -> None:
    """Make a model of random weights, unless it exists, and its configuration in the package's form,
    independent of the current folder."""
    import yaml

    if not absolute(folder).is_file():
        make_pocket_checkpoint(folder, shape=shape)
        config = dict(load_checkpoint(str(folder)).raw_config)
        absolute(folder).write_text(yaml.safe_dump(config))


def absolute(folder: Path) -> Path:
    """Return the path of the configuration that the package reads; the folder itself has one for our
    backend."""
    return folder.with_name(f"{folder.name}-absolute.yaml")


def render(values: Values) -> str:
    """Return the results in Markdown."""
    settings, attempts = values["settings"], values["attempts"]
    about = (
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}. The shape `{settings['shape']}`, random weights, a "
        "worker of one thread; medians (best) in ms of a frame of every caller, which lasts 80 ms. Sounds "
        "differ by: the largest difference of a sample between rows together and each row separately."
    )
    package = attempts["package"]
    lines = [
        "| callers | the package, one after the other | our rows apart | our rows together | times as fast | "
        "sounds differ by |",
        "|---" * 6 + "|",
    ]
    for callers in settings["callers"]:
        found = attempts[f"rows {callers}"]
        apart, together = found["apart"], found["together"]
        cells = [str(callers), f"{callers * package['median_ms']:.0f} ({callers * package['best_ms']:.0f})"]
        cells += [f"{way['median_ms']:.0f} ({way['best_ms']:.0f})" for way in (apart, together)]
        cells += [f"{apart['median_ms'] / together['median_ms']:.2f}", f"{found['apart_by']:.0e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n\n".join(["# Pocket-TTS at several callers", about, "\n".join(lines)]) + "\n"


def render_graphs(values: Values) -> str:
    """Return the results of graphs in Markdown."""
    head = ("threads", "callers", "`pocket`, ms", "`onnx`, ms", "times as fast", "CPU ms", "", "ratio")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for key, found in values["attempts"].items():
        if not key.startswith("graphs"):
            continue
        _, threads, callers = key.split()
        cells = [threads, callers]
        for kind in ("clock", "processor"):
            one, other = (found[name][kind] for name in ("pocket", "onnx"))
            cells += [f"{it['median_ms']:.0f} ({it['best_ms']:.0f})" for it in (one, other)]
            cells.append(f"{one['median_ms'] / other['median_ms']:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(["", "Whole steps, medians (best):", "", *lines]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="lab.bench.pocket_rows",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--shape", default="english", help="a configuration of the package [%(default)s]")
    parser.add_argument("--graphs", metavar="FOLDER", help="its ONNX graphs, to compare")
    parser.add_argument("--quick", action="store_true", help="a small model, few frames")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    options = parser.parse_args(argv)
    warn_if_busy()
    shape, frames = (None, 3) if options.quick else (options.shape, FRAMES)
    folder = options.out / f"pocket-{shape or 'small'}"
    make_model(folder, shape)
    settings = {"shape": shape or "small", "callers": CALLERS, "frames": frames}
    results = Results(options.out / "pocket-rows.json", settings=settings, resume=options.resume)
    backend = make_backend("pocket", load_checkpoint(str(folder)), slots=max(CALLERS), options={"threads": 1})
    assert isinstance(backend, PocketBackend)
    tell("the package")
    results.attempt("package", partial(measure_package, folder, 1 if options.quick else 3))
    for callers in CALLERS:
        tell(f"{callers} callers")
        results.attempt(f"rows {callers}", partial(measure_rows, backend, callers, frames))
    backend.close()
    page = render(results.values)
    if options.graphs is not None:
        for threads in THREADS:
            made = {
                name: make_backend(
                    name, load_checkpoint(ref), slots=max(CALLERS), options={"threads": threads}
                )
                for name, ref in (("pocket", str(folder)), ("onnx", options.graphs))
            }
            made["onnx"].warm_up(lambda *_: None)
            for callers in CALLERS:
                tell(f"graphs, {threads} threads, {callers} callers")
                results.attempt(f"graphs {threads} {callers}", partial(measure_graphs, made, callers, frames))
            for each in made.values():
                each.close()
        page += render_graphs(results.values)
    print(write_page(options.out / "pocket-rows.md", page), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
