"""Checkpoints in folders and built-in ones: found, loaded and verified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from antiphon.errors import CheckpointDigestError, CheckpointFormatError, CheckpointNotFoundError
from antiphon.install import antiphon_command
from antiphon.models.catalog import builtin_folder, load_checkpoint, weights_folder
from antiphon.models.checkpoint import describe, read_checkpoint
from antiphon.models.manifest import MANIFEST_NAME, FileEntry, file_entry, write_manifest
from antiphon.models.source import BUILTIN, DEFAULT_MODEL, Folder
from antiphon.models.spec import PipelineKind

EXPECTED = {
    "moshi": (PipelineKind.DUPLEX, "moshi", 16, 8, 1),
    "hibiki": (PipelineKind.DUPLEX, "hibiki", 16, 8, 2),
    "personaplex": (PipelineKind.DUPLEX, "personaplex", 16, 8, 1),
    "stt": (PipelineKind.STT, "stt", 8, 0, 0),
    "tts": (PipelineKind.TTS, "tts", 8, 8, 2),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_published_folder_is_read(kind: str, made: dict[str, Path]) -> None:
    checkpoint = load_checkpoint(str(made[kind]))
    spec = checkpoint.spec
    assert spec.lm is not None
    found = (spec.kind, spec.family, spec.lm.n_q, spec.lm.dep_q, spec.lm.max_delay)
    assert found == EXPECTED[kind]
    assert (spec.name, spec.sample_rate, spec.frame_samples) == (kind, 24000, 1920)
    assert (spec.mimi.codebooks, spec.mimi.cardinality) == (8, 64)
    assert set(checkpoint.files) == {"lm", "mimi", "mimi_config", "tokenizer", "config"}
    assert checkpoint.root == made[kind]
    assert checkpoint.raw_config == json.loads((made[kind] / "config.json").read_text())
    assert (checkpoint.backends, checkpoint.quantization_for("torch"), checkpoint.revision) == (
        {},
        None,
        None,
    )
    assert checkpoint.verify() == 0  # nothing to compare with
    assert checkpoint.file("lm") == made[kind] / "model.safetensors"
    assert checkpoint.generation == spec.generation


def test_stt_brings_its_heads_and_settings(made: dict[str, Path]) -> None:
    spec = load_checkpoint(str(made["stt"])).spec
    assert spec.lm is not None
    assert spec.lm.extra_heads == 4
    assert spec.generation["stt_config"]["audio_delay_seconds"] == 0.48
    assert spec.delay_frames == 0


def test_text_tokenizer_comes_with_a_language_model(made: dict[str, Path]) -> None:
    tokenizer = load_checkpoint(str(made["moshi"])).text_tokenizer()
    assert tokenizer is not None
    assert tokenizer.vocabulary == 256
    assert load_checkpoint(str(made["codec"])).text_tokenizer() is None


def test_missing_role_names_those_there_are(made: dict[str, Path]) -> None:
    with pytest.raises(CheckpointFormatError) as refused:
        load_checkpoint(str(made["codec"])).file("mimi_confi")
    assert str(refused.value) == (
        "codec has no file for 'mimi_confi' (did you mean 'mimi_config'?), it has config, mimi, mimi_config"
    )


def test_mimi_alone_needs_no_config(made: dict[str, Path], tmp_path: Path) -> None:
    for name in ("mimi.safetensors", "mimi_config.json"):
        shutil.copyfile(made["codec"] / name, tmp_path / name)
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.spec.kind is PipelineKind.CODEC
    assert set(checkpoint.files) == {"mimi", "mimi_config"}
    assert checkpoint.root == tmp_path


def test_moshi_weights_alone_are_taken_for_moshi_7b(made: dict[str, Path], tmp_path: Path) -> None:
    shutil.copyfile(made["moshi"] / "model.safetensors", tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointNotFoundError, match=r"no file 'tokenizer-e351c8d8-checkpoint125\.safetensors'"
    ):
        load_checkpoint(str(tmp_path))
    shutil.copyfile(
        made["moshi"] / "mimi.safetensors", tmp_path / "tokenizer-e351c8d8-checkpoint125.safetensors"
    )
    shutil.copyfile(made["moshi"] / "tokenizer.model", tmp_path / "tokenizer_spm_32k_3.model")
    with pytest.raises(
        CheckpointFormatError, match=r"hold 2 layers \('transformer\.layers\.\*'\), the config says 32"
    ):
        load_checkpoint(str(tmp_path))


def test_empty_folder_says_what_it_could_have_held(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError) as refused:
        load_checkpoint(str(tmp_path))
    assert str(refused.value) == (
        f"{tmp_path} holds no model: none of antiphon.json, config.json, model.safetensors, "
        "mimi.safetensors is there"
    )


def test_named_file_that_is_not_there_is_named(made: dict[str, Path], tmp_path: Path) -> None:
    shutil.copyfile(made["moshi"] / "config.json", tmp_path / "config.json")
    with pytest.raises(CheckpointNotFoundError, match=r"has no file 'mimi\.safetensors'.*copy it there"):
        load_checkpoint(str(tmp_path))


def test_file_prefix_is_tolerated(made: dict[str, Path], tmp_path: Path) -> None:
    config = {"model_type": "mimi", "mimi_name": f"file://{made['codec'] / 'mimi.safetensors'}"}
    config["mimi_config_name"] = str(made["codec"] / "mimi_config.json")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_checkpoint(str(tmp_path)).file("mimi") == made["codec"] / "mimi.safetensors"


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "nul", "\ud800".encode("utf-8", "surrogatepass"), "[" * 100_000]
)
def test_config_that_is_no_object_is_refused(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CheckpointFormatError, match=r"config\.json (is not JSON|holds a JSON list)"):
        load_checkpoint(str(tmp_path))


def test_config_that_cannot_be_read_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    class Broken(Folder):
        def find(self, name: str) -> Path | None:
            return tmp_path / name  # promised, and then it is gone

    with pytest.raises(CheckpointFormatError, match=r"antiphon\.json cannot be read"):
        read_checkpoint(Broken(tmp_path), "broken")


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_models_load_and_are_intact(name: str) -> None:
    checkpoint = load_checkpoint(name)
    seen: list[tuple[int, int, str]] = []
    assert checkpoint.verify(lambda *step: seen.append(step)) == len(checkpoint.files)
    assert [done for done, _, _ in seen] == list(range(len(checkpoint.files)))
    assert checkpoint.spec.name == checkpoint.ref == name
    assert checkpoint.root == builtin_folder(name)
    assert "onnx" in checkpoint.backends


def test_builtin_models_are_what_they_are_said_to_be() -> None:
    echo, duplex = (load_checkpoint(name).spec for name in ("echo", "tiny"))
    assert (echo.kind, echo.mimi.codebooks, echo.mimi.cardinality) == (PipelineKind.CODEC, 8, 512)
    assert duplex.kind is PipelineKind.DUPLEX
    assert duplex.lm is not None
    assert (duplex.lm.n_q, duplex.lm.dep_q, duplex.lm.card, duplex.mimi) == (16, 8, 512, echo.mimi)
    kinds = {name: load_checkpoint(name).spec.kind for name in ("tiny-stt", "tiny-tts")}
    assert kinds == {"tiny-stt": PipelineKind.STT, "tiny-tts": PipelineKind.TTS}
    assert DEFAULT_MODEL in BUILTIN


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_models_read_the_same_in_the_published_layout(name: str) -> None:
    class WithoutManifest(Folder):
        def find(self, name: str) -> Path | None:
            return None if name == MANIFEST_NAME else super().find(name)

    published = read_checkpoint(WithoutManifest(builtin_folder(name), beside=weights_folder(name)), name)
    assert published.spec == load_checkpoint(name).spec
    ours = load_checkpoint(name).files
    assert published.files == {role: path for role, path in ours.items() if not role.startswith("onnx.")}


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_models_are_the_same_without_their_published_weights(name: str) -> None:
    bare, whole = read_checkpoint(Folder(builtin_folder(name)), name), load_checkpoint(name)
    assert (bare.spec, bare.digest) == (whole.spec, whole.digest)
    assert bare.verify() == whole.verify() - len(bare.absent)
    assert bare.absent.keys() == {"mimi", "mimi_config"} | ({"lm"} & whole.files.keys())
    for role, missing in bare.absent.items():
        with pytest.raises(CheckpointNotFoundError) as refused:
            bare.file(role)
        assert str(refused.value) == (
            f"{name} is here as ONNX graphs only, without its published weights '{missing}': "
            "install the package antiphon-weights (in a checkout: pip install ./weights)"
        )
    copied = read_checkpoint(Folder(builtin_folder(name)), "./copied")
    with pytest.raises(CheckpointNotFoundError, match=r"'[^']+': copy it again from its source$"):
        copied.file("mimi")


def test_a_folder_without_graphs_needs_its_weights(made: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(made["moshi"], tmp_path / "moshi")
    manifest = describe(load_checkpoint(str(tmp_path / "moshi")))
    write_manifest(manifest, tmp_path / "moshi" / MANIFEST_NAME)
    (tmp_path / "moshi" / manifest.files["lm"].path).unlink()
    with pytest.raises(CheckpointNotFoundError, match="which its configuration names: copy it there"):
        load_checkpoint(str(tmp_path / "moshi"))


def test_builtin_models_share_one_codec() -> None:
    ours = load_checkpoint(DEFAULT_MODEL).file("mimi")
    assert all(load_checkpoint(name).file("mimi").samefile(ours) for name in BUILTIN)


def test_builtin_name_wins_over_a_folder(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made["codec"], tmp_path / "echo")
    monkeypatch.chdir(tmp_path)
    assert load_checkpoint("echo").spec.mimi.cardinality == 512
    assert load_checkpoint("./echo").spec.mimi.cardinality == 64


@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("ecco", " (did you mean 'echo'?)"),
        ("kyutai/moshiko-pytorch-bf16", "; on the hub it would be hf://kyutai/moshiko-pytorch-bf16"),
        ("/no/such/folder", ""),
        ("./none", ""),
    ],
)
def test_unknown_model_lists_what_there_is(ref: str, hint: str) -> None:
    with pytest.raises(CheckpointNotFoundError) as refused:
        load_checkpoint(ref)
    assert str(refused.value) == (
        f"no model '{ref}'{hint}: it is no folder, and the built-in ones are {', '.join(BUILTIN)}; "
        f"{antiphon_command('models')} lists others"
    )


def test_installation_without_its_assets_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("antiphon.models.catalog.resources.files", lambda package: tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="this installation lacks the built-in model 'echo' at"):
        load_checkpoint("echo")


@pytest.mark.parametrize("kind", [*EXPECTED, "codec"])
def test_manifest_of_a_published_folder_means_the_same(
    kind: str, made: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / kind
    shutil.copytree(made[kind], folder)
    published = load_checkpoint(str(folder))
    write_manifest(describe(published), folder / MANIFEST_NAME)
    described = load_checkpoint(str(folder))
    assert described.spec == published.spec
    assert described.files == published.files
    assert described.raw_config == published.raw_config
    assert described.verify() == len(published.files)


@pytest.fixture
def described(made: dict[str, Path], tmp_path: Path) -> Path:
    folder = tmp_path / "described"
    shutil.copytree(made["codec"], folder)
    write_manifest(describe(load_checkpoint(str(folder))), folder / MANIFEST_NAME)
    return folder


def test_changed_byte_is_found_by_verifying(described: Path) -> None:
    mimi = described / "mimi.safetensors"
    content = bytearray(mimi.read_bytes())
    content[-1] ^= 1
    mimi.write_bytes(content)
    checkpoint = load_checkpoint(str(described))  # the size is right
    assert checkpoint.manifest is not None
    promised, found = checkpoint.manifest.files["mimi"].sha256, file_entry(described, mimi.name).sha256
    with pytest.raises(CheckpointDigestError) as refused:
        checkpoint.verify()
    assert str(refused.value) == (
        f"{mimi} has SHA-256 {found}, the manifest says {promised}; copy it again from its source, "
        f"or, if you changed it: {antiphon_command('serve --skip-digests')}"
    )
    assert (refused.value.found, refused.value.promised) == (found, promised)


def test_changed_size_is_found_by_loading(described: Path) -> None:
    config = described / "mimi_config.json"
    bytes_before = config.stat().st_size
    config.write_text(config.read_text() + " ")
    with pytest.raises(
        CheckpointFormatError, match=f"has {bytes_before + 1} bytes, the manifest says {bytes_before}"
    ):
        load_checkpoint(str(described))


def test_file_that_shrinks_after_loading_is_found_by_verifying(described: Path) -> None:
    checkpoint = load_checkpoint(str(described))
    (described / "mimi.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointFormatError, match="has 0 bytes, the manifest says"):
        checkpoint.verify()


def test_file_entry_is_relative_to_the_manifest(described: Path) -> None:
    entry = file_entry(described / "..", f"{described.name}/config.json")
    assert entry == FileEntry(
        f"{described.name}/config.json", entry.sha256, (described / "config.json").stat().st_size
    )
    entry.check_hash(described / "config.json", "copy it again")
