"""What a codec's quantised graphs do to recorded speech: waveform, intelligibility, and codes.

    python -m bench.codec_quality RECORDING...                     int8 and int4 beside float32, echo
    python -m bench.codec_quality --model ./float --recipe mine.toml RECORDING...

The model has float32 graphs (antiphon quantize --target onnx --recipe float32); the other forms are made
from them. Columns: the float encoder's codes that the form's encoder finds too, of the first codebook and of
all; the decoder alone, on the float encoder's codes, as SI-SDR to what the float decoder makes of them; and
encoder with decoder: SI-SDR to the float form, STOI to the recording.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.audio.files import read_audio
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.errors import AntiphonError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.quality import si_sdr, stoi
from antiphon_quantize.recipe import load_recipe
from bench.harness import Results, Values, machine_line, tell

Floats: TypeAlias = NDArray[np.float32]
Codes: TypeAlias = NDArray[np.int64]

FLOAT = "float32"
STAGES = ("encode", "decode")


class Codec:
    """A codec's two graphs, for one row."""

    def __init__(self, checkpoint: Checkpoint, paths: Mapping[str, Path]) -> None:
        """Load the graphs at ``paths``, which are those of the checkpoint in some number of bits."""
        mimi, providers = checkpoint.spec.mimi, pick_provider("cpu")[1]
        self.rate, self.frame_samples = mimi.sample_rate, mimi.frame_samples
        self._encode, self._decode = (
            Graph(open_session(paths[stage], providers, 1), checkpoint.graphs[stage], 1) for stage in STAGES
        )

    def encode(self, pcm: Floats) -> Codes:
        """PCM ``[N]`` to codes ``[frames, codebooks]``, a call of its own; a part of a frame is left."""
        frames = pcm[: len(pcm) // self.frame_samples * self.frame_samples].reshape(-1, self.frame_samples)
        return np.stack([found.copy() for found in _stream(self._encode, "pcm", frames, "codes")])

    def decode(self, codes: Codes) -> Floats:
        """Codes ``[frames, codebooks]`` to PCM ``[N]``, as a call of its own."""
        return np.concatenate([found.copy() for found in _stream(self._decode, "codes", codes, "pcm")])


def _stream(graph: Graph, name: str, frames: NDArray[Any], output: str) -> Iterator[NDArray[Any]]:
    graph.state.reset([0])
    graph.inputs["exec"][:] = True
    for frame in frames:
        graph.inputs[name][0] = frame
        graph.run(1)
        yield graph.outputs[output][0]


def make_forms(model: str, recipes: Sequence[str], folder: Path) -> dict[str, Codec]:
    """The model's float32 graphs, and what each recipe makes of them; rounded graphs go to ``folder``.

    Raises:
        UnsupportedError: the model has no graphs, or they are quantised already.
    """
    checkpoint = load_checkpoint(model)
    if any(stage not in checkpoint.graphs for stage in STAGES):
        raise UnsupportedError(f"{model} has no graphs: antiphon quantize --target onnx --recipe float32")
    whole = {stage: checkpoint.file(checkpoint.graphs[stage].file) for stage in STAGES}
    forms = {FLOAT: Codec(checkpoint, whole)}
    for name in recipes:
        paths = {stage: folder / f"{Path(name).stem}-{stage}.onnx" for stage in STAGES}
        for stage, path in paths.items():
            quantize_graph(whole[stage], path, load_recipe("onnx", name))
        forms[name] = Codec(checkpoint, paths)
    return forms


def compare(forms: Mapping[str, Codec], recording: Floats) -> Values:
    """The columns of each form. ``recording`` is at the codec's rate."""
    reference = forms[FLOAT]
    codes = reference.encode(recording)
    heard = reference.decode(codes)
    recording = recording[: len(heard)]
    values = {}
    for name, codec in forms.items():
        own = codec.encode(recording)
        spoken = codec.decode(own)
        values[name] = {
            "first_codebook": float((own[:, 0] == codes[:, 0]).mean()),
            "all_codebooks": float((own == codes).mean()),
            "decoder_si_sdr_db": si_sdr(heard, codec.decode(codes)),
            "si_sdr_db": si_sdr(heard, spoken),
            "stoi": stoi(recording, spoken, codec.rate),
        }
    return values


def render(values: Values) -> str:
    """The results in Markdown."""
    head = (
        "| recording | form | first codebook | all codebooks | decoder alone, dB | both, dB | STOI |\n"
        "|---|---|---|---|---|---|---|"
    )
    rows = [
        f"| {recording} | {form} | {cell['first_codebook']:.1%} | {cell['all_codebooks']:.1%} | "
        f"{cell['decoder_si_sdr_db']:.1f} | {cell['si_sdr_db']:.1f} | {cell['stoi']:.4f} |"
        for recording, forms in values["attempts"].items()
        for form, cell in forms.items()
    ]
    return "\n\n".join(
        ["# Codec quality", f"`{values['command']}`. {machine_line(values)}", "\n".join([head, *rows])]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="bench.codec_quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", nargs="+", type=Path, metavar="RECORDING")
    parser.add_argument("--model", default="echo", help="a codec with float32 graphs [%(default)s]")
    parser.add_argument("--recipe", action="append", help="[int8 and int4]")
    parser.add_argument("--seconds", type=float, default=30, help="of each recording [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    options = parser.parse_args(argv)
    recipes = options.recipe or ["int8", "int4"]
    settings = {"model": options.model, "recipes": recipes, "seconds": options.seconds}
    results = Results(options.out / "codec-quality.json", settings=settings, resume=False)
    try:
        folder = options.out / "graphs"
        folder.mkdir(parents=True, exist_ok=True)
        forms = make_forms(options.model, recipes, folder)
        for path in options.recordings:
            recording = read_audio(path, forms[FLOAT].rate)[: int(options.seconds * forms[FLOAT].rate)]
            results.attempt(path.name, lambda recording=recording: compare(forms, recording))  # type: ignore[misc]
    except (AntiphonError, ValueError) as error:
        tell(f"bench.codec_quality: {error}")
        return 1
    text = render(results.values)
    (options.out / "codec-quality.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
