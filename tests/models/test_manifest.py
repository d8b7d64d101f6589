"""``antiphon.json`` round-trips, and errors name the invalid entry."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import CheckpointFormatError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import describe
from antiphon.models.manifest import (
    BackendFormat,
    CodecEntry,
    FileEntry,
    Manifest,
    QuantizationRecipe,
    graph_from_json,
    manifest_from_json,
    read_manifest,
    write_manifest,
)
from antiphon.models.published import FAMILIES, GENERATION_KEYS, LM_KEYS

texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, values, max_size=3)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
paths = texts.filter(lambda path: not path.startswith("/"))
entries = st.builds(FileEntry, paths, digests, st.integers(0, 2**40))
recipes = st.builds(
    QuantizationRecipe,
    texts,
    st.integers(1, 16),
    st.none() | st.integers(1, 256),
    st.lists(texts, max_size=3).map(tuple),
    texts,
    texts,
    objects,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    files = {"mimi": draw(entries)} | draw(st.dictionaries(texts, entries, max_size=3))
    formats = st.builds(
        BackendFormat,
        st.lists(st.sampled_from(sorted(files)), max_size=3).map(tuple),
        st.none() | texts,
        st.dictionaries(texts, texts, max_size=2),
        objects,
    )
    family = draw(st.sampled_from(sorted(FAMILIES)))
    lm = st.dictionaries(st.sampled_from(sorted(LM_KEYS)), values, max_size=4)
    return Manifest(
        name=draw(texts),
        family=family,
        files=files,
        mimi=CodecEntry(draw(st.integers(1, 32)), draw(st.none() | objects)),
        lm=None if family == "mimi" else draw(lm),
        generation=draw(st.dictionaries(st.sampled_from(GENERATION_KEYS), objects, max_size=2)),
        parameters=draw(st.none() | st.integers(0, 2**40)),
        backends=draw(st.dictionaries(texts, formats, max_size=2)),
        quantization=draw(st.none() | recipes),
        description=draw(texts),
        license=draw(texts),
        examples=draw(st.lists(texts, max_size=2).map(tuple)),
        voices=draw(st.dictionaries(texts, texts, max_size=2)),
    )


@settings(max_examples=60)
@given(manifest=manifests())
def test_what_is_written_is_read_back(manifest: Manifest, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "antiphon.json"
    write_manifest(manifest, path)
    assert read_manifest(path) == manifest


SMALL: dict[str, Any] = {
    "schema": 1,
    "name": "small",
    "family": "mimi",
    "files": {"mimi": {"path": "m.safetensors", "sha256": "0" * 64, "bytes": 12}},
    "mimi": {"codebooks": 8},
}


def test_what_may_be_left_out_may_be_left_out() -> None:
    manifest = manifest_from_json(SMALL, "a.json")
    files = {"mimi": FileEntry("m.safetensors", "0" * 64, 12)}
    assert manifest == Manifest(name="small", family="mimi", files=files, mimi=CodecEntry(8))
    assert set(asdict(manifest)) > set(SMALL)


FULL = SMALL | {
    "family": "moshi",
    "lm": {"dim": 8},
    "backends": {"onnx": {"files": ["mimi"], "dtype": "int8", "requires": {"onnxruntime": "1.20"}}},
    "quantization": {"scheme": "int8-weights", "bits": 8, "keep": ["text_linear.*"]},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The full manifest with one value replaced, or taken away if it is None."""
    whole = deepcopy(FULL)
    *parents, last = path.split("/")
    target: Any = whole
    for key in parents:
        target = target[key]
    if value is None:
        target.pop(last, None)
    else:
        target[last] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", 2, "a.json has schema 2, this version reads 1"),
        ("schema", None, "a.json lacks schema"),
        ("nname", "x", "a.json has an unknown key 'nname' (did you mean 'name'?)"),
        ("zzz", 1, "a.json has an unknown key 'zzz'"),
        ("name", 5, "a.json.name is 5, a string is needed"),
        ("family", "moshy", "a.json: unknown family 'moshy' (did you mean 'moshi'?), known: moshi, hibiki,"),
        ("family", "mimi", "a.json: family 'mimi' with the arguments of an LM"),
        ("lm", None, "a.json: family 'moshi' without the arguments of an LM"),
        ("lm/dimm", 8, "a.json: lm has an unknown key 'dimm' (did you mean 'dim'?)"),
        ("lm", [1], "a.json.lm is a list, an object or null is needed"),
        ("files", {}, "a.json: files lacks the role mimi"),
        ("files/mimi", "m", "a.json: files.mimi is a str, expected an object"),
        ("files/mimi/md5", "m", "a.json: files.mimi has an unknown key 'md5'"),
        ("files/mimi/bytes", None, "a.json: files.mimi lacks bytes"),
        ("files/mimi/bytes", -1, "a.json: files.mimi.bytes is -1"),
        ("files/mimi/bytes", True, "a.json: files.mimi.bytes is true or false, a whole number is needed"),
        ("files/mimi/bytes", 1.5, "a.json: files.mimi.bytes is 1.5, a whole number is needed"),
        ("files/mimi/sha256", "abc", "files.mimi.sha256 is 'abc', expected 64 lower-case hex digits"),
        ("files/mimi/sha256", "A" * 64, "expected 64 lower-case hex digits"),
        ("files/mimi/path", "/etc/passwd", "path is '/etc/passwd', expected one relative to the manifest"),
        ("mimi/codebook", 8, "a.json: mimi has an unknown key 'codebook' (did you mean 'codebooks'?)"),
        ("mimi/codebooks", None, "a.json: mimi lacks codebooks"),
        (
            "backends/onnx/files",
            ["mimmi"],
            "backends.onnx wants the file 'mimmi' (did you mean 'mimi'?), files has mimi",
        ),
        ("backends/onnx/files", [1], "a.json: backends.onnx.files is 1, a string is needed"),
        ("backends/onnx/needs", {}, "a.json: backends.onnx has an unknown key 'needs'"),
        ("backends/onnx/requires", {"a": 1}, "a.json: backends.onnx.requires.a is 1, a string is needed"),
        ("quantization/bit", 8, "a.json: quantization has an unknown key 'bit' (did you mean 'bits'?)"),
        ("quantization/scheme", None, "a.json: quantization lacks scheme"),
        ("quantization/keep", ["a", 2], "a.json: quantization.keep is 2, a string is needed"),
        (
            "generation",
            {"lm_gen": {}},
            "generation has an unknown key 'lm_gen' (did you mean 'lm_gen_config'?)",
        ),
        ("generation", {"tts_config": 1}, "a.json: generation.tts_config is 1, an object is needed"),
        ("parameters", "many", "a.json.parameters is 'many', a whole number or null is needed"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(CheckpointFormatError) as refused:
        manifest_from_json(changed(path, value), "a.json")
    assert message in str(refused.value)


@given(content=values)
def test_any_other_json_is_refused_in_our_own_words(content: Any) -> None:
    with pytest.raises(CheckpointFormatError, match=r"a\.json"):
        manifest_from_json(content, "a.json")


@settings(max_examples=200)
@given(data=st.data(), value=values)
def test_no_replaced_value_raises_anything_else(data: st.DataObject, value: Any) -> None:
    places = ["schema", "name", "family", "files", "mimi", "lm", "backends", "quantization", "generation"]
    places += ["files/mimi", "files/mimi/path", "mimi/codebooks", "backends/onnx", "lm/dim"]
    where = data.draw(st.sampled_from(places))
    with suppress(CheckpointFormatError):
        manifest_from_json(changed(where, value), "a.json")


def blocks(language: str) -> list[str]:
    """The code blocks of one language in docs/manifest.md."""
    text = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_documented_example_reads_and_shows_every_key() -> None:
    example, graphs = blocks("json")
    given_values = json.loads(re.sub(r"[0-9a-f]{4}…64 hex digits…", "0" * 64, example))
    read = manifest_from_json(given_values, "docs/manifest.md")
    assert read.quantization is not None
    written = asdict(read)
    for shown, whole in (
        (given_values, written),
        (given_values["backends"]["torch"], written["backends"]["torch"]),
        (given_values["quantization"], written["quantization"]),
    ):
        assert shown.keys() == whole.keys()
    for name, graph in json.loads(graphs).items():
        assert asdict(graph_from_json(graph, name)) == {
            **graph,
            **{
                part: tuple({**t, "shape": tuple(t["shape"])} for t in graph[part])
                for part in ("inputs", "outputs")
            },
            "state": tuple(graph["state"]),
        }


def test_a_built_in_model_is_described() -> None:
    checkpoint = load_checkpoint("tiny")
    assert (checkpoint.spec.kind, checkpoint.file("mimi").name) == ("duplex", "mimi.safetensors")
    assert checkpoint.verify() == 9
    graphs = {f"onnx.{name}" for name in ("encode", "decode", "lm", "depformer")}
    assert set(describe(checkpoint).files) == {"config", "lm", "mimi", "mimi_config", "tokenizer"} | graphs


def test_file_ends_with_a_newline_and_keeps_other_letters(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.json"
    write_manifest(manifest_from_json(SMALL | {"description": "Stimme für zwei Chöre"}, "a.json"), path)
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert "Chöre" in path.read_text(encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == 1
