"""Checks that the audio delay and the page's heap remain constant during a long call in a real browser.

    python -m lab.bench.web_delay                     ten minutes of Opus, the default model
    python -m lab.bench.web_delay --format pcm_s16le  the same without a codec
    python -m lab.bench.web_delay --quick             seconds, to see that it works
    python -m lab.bench.web_delay -- --backend null   options after -- go to `antiphon serve`

The server's page runs in a headless Chromium, whose microphone repeats a recording. Mouth to ear is the
page's own number: from the first sample of a frame at the microphone to the first of its answer at the
speaker, on one clock, read once a second. The heap is V8's after a collection, every 30 s; recordings are
blobs outside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from antiphon.audio.wav import write_wav
from antiphon_client.clip import load_clip
from antiphon_client.plot import load_matplotlib
from lab.bench.harness import (
    BenchError,
    Results,
    Values,
    machine_line,
    running_server,
    serve_command,
    tell,
    terminable,
    warn_if_busy,
)
from lab.bench.pages import write_page
from tests.support.launch import started
from tests.support.node import MissingToolError, browser_env, find_node

SAMPLE_RATE = 24_000
SCRIPT = Path(__file__).with_suffix(".js")
GROWTH_LIMIT_MS = 20.0
"""Most milliseconds by which the last tenth of a call may be later than the first (medians): a quarter of a
frame."""

FIRST_SOUND_LIMIT_MS = 5000.0
"""Most milliseconds of a first visit until the first sound: the page, the devices, the call."""

HEAP_GROWTH_LIMIT_BYTES = 500_000
"""Most bytes by which the heap may grow after a call's first minute: the words of ten minutes."""

HEAP_WARM_UP_S = 60.0

END_S = 60.0
"""Seconds that the browser may take beyond the call itself."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run: the length and format of a call, its uncounted start, and the server's
    options."""

    seconds: float = 600.0
    format: str = "opus"
    warm_up_s: float = 15.0
    serve: tuple[str, ...] = ()


QUICK = Settings(seconds=6.0, warm_up_s=1.0)


def watch(url: str, settings: Settings, scratch: Path) -> Iterator[Values]:
    """Run the call; yields the page's reports as they arrive.

    Raises:
        BenchError: Node.js or Chromium is missing, or the call was interrupted.
    """
    clip = scratch / "clip.wav"
    write_wav(clip, load_clip(None), SAMPLE_RATE)
    try:
        command = [find_node(), str(SCRIPT), url, str(round(settings.seconds)), settings.format]
        env = browser_env(clip)
    except MissingToolError as error:
        raise BenchError(str(error)) from error
    with started(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
        code = process.wait(END_S)
    if code != 0:
        raise BenchError(f"the browser's script ended with exit code {code}")


def summarise(lines: Sequence[Values], *, warm_up_s: float) -> Values:
    """Summarise the delay from mouth to ear after the warm-up: medians of the first and the last tenth, their
    difference, gaps and the first sound.

    Raises:
        BenchError: too few numbers after the warm-up, or a call that was interrupted.
    """
    states = {line["state"] for line in lines if "state" in line} - {"live"}
    if states:
        raise BenchError(f"the call was interrupted: {', '.join(sorted(states))}")
    after = [line for line in lines if line.get("at_s", 0) >= warm_up_s and line.get("mouthToEarMs")]
    if len(after) < 3:
        raise BenchError(f"{len(after)} numbers after {warm_up_s:g} s, at least 3 are needed")
    delays = np.array([line["mouthToEarMs"] for line in after])
    first_sound_ms = next(line["first_sound_ms"] for line in lines if "first_sound_ms" in line)
    tenth = max(1, len(after) // 10)
    first, last = float(np.median(delays[:tenth])), float(np.median(delays[-tenth:]))
    return {
        "first_sound_ms": first_sound_ms,
        "first_ms": first,
        "last_ms": last,
        "growth_ms": last - first,
        "median_ms": float(np.median(delays)),
        "max_ms": float(delays.max()),
        "gaps": int(after[-1]["gaps"]),
        "late": int(after[-1]["late"]),
        "lost": int(after[-1]["lost"]),
        "holds": last - first <= GROWTH_LIMIT_MS,
        "is_prompt": first_sound_ms <= FIRST_SOUND_LIMIT_MS,
    }


def summarise_heap(lines: Sequence[Values], *, warm_up_s: float = HEAP_WARM_UP_S) -> Values:
    """Summarise heap, nodes and listeners after the warm-up (or at the first sample of a short call) and at
    the end."""
    looks = [line for line in lines if line.get("heap_bytes")]
    if not looks:
        raise BenchError("the browser reported no size of its heap")
    first, last = next((it for it in looks if it["at_s"] >= warm_up_s), looks[0]), looks[-1]
    names = ("at_s", "heap_bytes", "nodes", "listeners")
    return {
        "first": {name: first[name] for name in names},
        "last": {name: last[name] for name in names},
        "max_bytes": max(line["heap_bytes"] for line in looks),
        "is_flat": last["heap_bytes"] - first["heap_bytes"] <= HEAP_GROWTH_LIMIT_BYTES,
    }


def render(values: Values) -> str:
    """Return the report in Markdown."""
    found, settings = values["delay"], values["settings"]
    heap = values["heap"]
    first, last = heap["first"], heap["last"]
    verdict = "It does not grow." if found["holds"] else "That is growth."
    return (
        "# The delay a listener hears, over a long call\n\n"
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before: "
        f"{values['machine']['load_average_before'][0]}.\n\n"
        f"{settings['seconds']:.0f} s of talk in {settings['format']}, in a headless Chromium on the same "
        f"machine. First visit to first sound: {found['first_sound_ms'] / 1000:.1f} s (the limit is "
        f"{FIRST_SOUND_LIMIT_MS / 1000:g} s). "
        f"Mouth to ear, medians: {found['first_ms']:.0f} ms in the first tenth, "
        f"{found['last_ms']:.0f} ms in the last ({found['growth_ms']:+.0f} ms; the limit is "
        f"{GROWTH_LIMIT_MS:.0f} ms). {verdict} At most {found['max_ms']:.0f} ms; {found['gaps']} gaps, "
        f"{found['late']} frames late, {found['lost']} lost "
        "or dropped.\n\n"
        f"The page's heap after a collection: {first['heap_bytes'] / 1e6:.2f} MB at {first['at_s']:.0f} s, "
        f"{last['heap_bytes'] / 1e6:.2f} MB at {last['at_s']:.0f} s (the limit is "
        f"{HEAP_GROWTH_LIMIT_BYTES / 1e6:+.1f} MB), {heap['max_bytes'] / 1e6:.2f} MB at most; nodes "
        f"{first['nodes']:.0f} and {last['nodes']:.0f}, listeners {first['listeners']:.0f} and "
        f"{last['listeners']:.0f}.\n\n![mouth to ear over time](web-delay.png)\n"
    )


def plot(values: Values, path: Path) -> None:
    """Plot the delay from mouth to ear over time with gaps marked, and write the figure to ``path``.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    lines = [line for line in values["samples"] if line.get("mouthToEarMs")]
    minutes = np.array([line["at_s"] for line in lines]) / 60
    delays = np.array([line["mouthToEarMs"] for line in lines])
    axes.plot(minutes, delays, label="mouth to ear")
    axes.plot(minutes, [line["bufferMs"] for line in lines], linewidth=0.8, label="buffered")
    gaps = np.diff([line["gaps"] for line in lines], prepend=lines[0]["gaps"]) > 0
    axes.plot(minutes[gaps], delays[gaps], "x", color="tab:red", label="a gap")
    axes.set(xlabel="minutes", ylabel="ms", ylim=(0, 1.2 * float(delays.max())))
    axes.legend(loc="lower right")
    axes.set_title(f"{values['settings']['format']}: {values['delay']['growth_ms']:+.0f} ms", fontsize=10)
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and write JSON, figure and text; returns 1 if the delay or the heap grew, or the first sound was
    late."""
    options = _parse(argv)
    settings: Settings = options.settings
    results = Results(options.out / "web-delay.json", settings=asdict(settings), resume=False)
    warn_if_busy()
    samples: list[Values] = []
    with terminable("lab.bench.web_delay"), tempfile.TemporaryDirectory() as scratch:
        command = serve_command("--slots", "1", *settings.serve)
        with running_server(command, Path(scratch) / "server.log") as server:
            for line in watch(server.url, settings, Path(scratch)):
                samples.append(line)
                if round(line.get("at_s", 1)) % 30 == 0:
                    tell(f"{line['at_s']:5.0f} s: {line.get('mouthToEarMs')} ms, {line.get('gaps')} gaps")
        results.values["delay"] = summarise(samples, warm_up_s=settings.warm_up_s)
        results.values["heap"] = summarise_heap(samples)
    results.values["samples"] = samples
    results.save()
    write_page(options.out / "web-delay.md", render(results.values))
    plot(results.values, options.out / "web-delay.png")
    found, heap = results.values["delay"], results.values["heap"]
    tell(f"{found}, {heap}; written: {options.out}/web-delay.json, .md and .png")
    return 0 if (found["holds"] and found["is_prompt"] and heap["is_flat"]) or options.quick else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="lab.bench.web_delay", description=summary)
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    parser.add_argument("--seconds", type=float, help=f"[{Settings().seconds:g}]")
    parser.add_argument("--format", choices=["opus", "pcm_s16le"], default="opus", help="[%(default)s]")
    parser.add_argument("serve", nargs="*", metavar="-- OPTION", help="options of `antiphon serve`")
    options = parser.parse_args(argv)
    base = QUICK if options.quick else Settings()
    options.settings = Settings(
        seconds=options.seconds or base.seconds,
        format=options.format,
        warm_up_s=base.warm_up_s,
        serve=tuple(options.serve),
    )
    return options


if __name__ == "__main__":
    sys.exit(main())
