"""Finds the checkpoint for the name of a model."""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from antiphon.errors import CheckpointNotFoundError, hint
from antiphon.install import antiphon_command
from antiphon.models.checkpoint import CONFIG_NAME, Checkpoint, read_checkpoint
from antiphon.models.manifest import MANIFEST_NAME
from antiphon.models.pocket import PREFIX, find_config, packaged_config, read_pocket
from antiphon.models.source import BUILTIN, HUB_PREFIX, Folder, open_repository

WEIGHTS_PACKAGE: Final = "antiphon_weights"


def builtin_folder(name: str) -> Path:
    """The folder of a built-in model. Raises CheckpointNotFoundError if it is not installed."""
    folder = Path(str(resources.files("antiphon"))) / "assets" / name
    if not folder.is_dir():
        raise CheckpointNotFoundError(f"this installation lacks the built-in model '{name}' at {folder}")
    return folder


def weights_folder(name: str) -> Path | None:
    """The folder of a built-in model's published weights; None without the package ``antiphon-weights``.

    A model that only shares another's weights has no such folder.
    """
    package = find_spec(WEIGHTS_PACKAGE)
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / name


def load_checkpoint(ref: str, *, is_confined: bool = False) -> Checkpoint:
    """Find a model: a built-in name, a folder, ``hf://owner/repo[@revision]``, or a Pocket-TTS configuration.

    A Pocket-TTS configuration is a YAML file, a folder that contains one, or ``pocket://NAME``, which names a
    configuration of the package ``pocket-tts``. A built-in name has priority over a folder of the same name;
    to name the folder, write ``./echo``. Raises CheckpointNotFoundError, CheckpointFormatError, and
    MissingExtraError for the hub's client or the package.

    With ``is_confined`` a folder must not refer to files outside of itself.
    """
    if ref in BUILTIN:
        return read_checkpoint(Folder(builtin_folder(ref), beside=weights_folder(ref)), ref)
    if ref.startswith(HUB_PREFIX):
        return read_checkpoint(open_repository(ref), ref)
    if ref.startswith(PREFIX):
        return read_pocket(packaged_config(ref), ref, f"pocket-tts-{ref.removeprefix(PREFIX)}")
    folder = Path(ref).expanduser()
    if folder.is_file() and folder.suffix in (".yaml", ".yml"):
        return read_pocket(folder, ref, folder.stem)
    if folder.is_dir():
        published = any((folder / name).is_file() for name in (MANIFEST_NAME, CONFIG_NAME))
        config = None if published else find_config(folder)
        if config is not None:
            return read_pocket(config, ref, folder.resolve().name)
        assets = (Path(str(resources.files("antiphon"))) / "assets").resolve()
        bound = (
            assets if folder.resolve().is_relative_to(assets) else folder
        )  # the package's share some files
        return read_checkpoint(Folder(folder, bound if is_confined else None), ref)
    is_on_hub = ref.count("/") == 1 and ref[0].isalnum()  # maybe
    near = f"; on the hub it would be {HUB_PREFIX}{ref}" if is_on_hub else hint(ref, BUILTIN)
    raise CheckpointNotFoundError(
        f"no model '{ref}'{near}: it is no folder, and the built-in ones are {', '.join(BUILTIN)}; "
        f"{antiphon_command('models')} lists others"
    )
