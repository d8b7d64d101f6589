"""The benchmark of recipes is the gate without limits."""

from __future__ import annotations

from pathlib import Path

from antiphon_quantize.gate_run import Material
from antiphon_quantize.gate_sound import built_in_clips
from lab.bench.recipe_quality import measure
from tests.backends.onnx.exports import exported_on_a_trained_codec


def test_the_benchmark_of_recipes_is_the_gate_without_limits(tmp_path: Path) -> None:
    material = Material(recordings=built_in_clips()[:1], frames=20, turns=1)
    model = exported_on_a_trained_codec().ref
    head, _, int8, int4 = measure(model, ["int8", "int4"], material, tmp_path).splitlines()
    assert head.startswith("| recipe | text kl | text agreement |")
    eight, four = (float(line.split("|")[2]) for line in (int8, int4))
    assert 0 < 3 * eight < four < 0.03
