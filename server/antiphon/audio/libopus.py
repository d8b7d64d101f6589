"""Finds and loads the library libopus, and declares the C types of its functions.

The library comes from the ``av`` wheel, which exists for every platform of the server, or else from the
system. ctypes releases the interpreter lock during each call, so several threads can encode and decode at
once. See docs/adr/0002-opus-through-libopus.md.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import re
from collections.abc import Callable
from ctypes import CDLL, POINTER, PyDLL, c_char_p, c_int, c_int32, c_void_p
from pathlib import Path

from antiphon.errors import AudioError

OK = 0

_LIBRARY_NAME = re.compile(r"(lib)?opus[-.][^/]*(so|dylib|dll)[.\d]*")


@functools.cache
def load_libopus() -> CDLL:
    """Load libopus; further calls return the same library.

    Raises:
        AudioError: libopus is missing or cannot be loaded; the message names the package to install.
    """
    library = _open(CDLL)
    _declare(library)
    return library


@functools.cache
def load_packet_parse() -> Callable[..., int]:
    """Load ``opus_packet_parse``, which is called with the interpreter lock held: a call takes less time than
    releasing the lock.

    Raises:
        AudioError: as :func:`load_libopus`.
    """
    parse = _open(PyDLL).opus_packet_parse
    parse.argtypes = [c_char_p, c_int32, c_void_p, c_void_p, c_void_p, POINTER(c_int)]
    parse.restype = c_int
    return parse


def _open(kind: type[CDLL]) -> CDLL:
    path = find_libopus(_av_folder(), ctypes.util.find_library)
    try:
        return kind(path)
    except OSError as error:
        raise AudioError(f"libopus at {path} cannot be loaded: {error}") from error


def find_libopus(av_folder: Path | None, find_library: Callable[[str], str | None]) -> str:
    """The path of libopus: next to the package ``av`` in ``av_folder``, else from ``find_library``.

    Wheels keep their libraries in ``av.libs`` (Linux, Windows) or ``av/.dylibs`` (macOS).

    Raises:
        AudioError: there is none in either place.
    """
    folders = () if av_folder is None else (av_folder.with_name("av.libs"), av_folder / ".dylibs")
    for folder in folders:
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            if _LIBRARY_NAME.fullmatch(file.name):
                return str(file)
    name = find_library("opus")
    if name is None:
        raise AudioError(
            "no libopus: the Python package 'av' contains it (pip install av), "
            "or install the system's (apt install libopus0, brew install opus)"
        )
    return name


def error_text(library: CDLL, code: int) -> str:
    """libopus's text for an error code, and the code."""
    words: bytes = library.opus_strerror(code)
    return f"{words.decode()} (libopus error {code})"


def _av_folder() -> Path | None:
    """The folder of the package ``av``, found without importing it and all of FFmpeg with it."""
    spec = importlib.util.find_spec("av")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _declare(library: CDLL) -> None:
    """Declare the functions' types (opus.h, opus_defines.h)."""
    library.opus_strerror.argtypes = [c_int]
    library.opus_strerror.restype = c_char_p
    library.opus_get_version_string.restype = c_char_p
    library.opus_encoder_create.argtypes = [c_int32, c_int, c_int, POINTER(c_int)]
    library.opus_encoder_create.restype = c_void_p
    library.opus_encoder_destroy.argtypes = [c_void_p]
    library.opus_encoder_destroy.restype = None
    library.opus_encode_float.argtypes = [c_void_p, c_void_p, c_int, c_void_p, c_int32]
    library.opus_encode_float.restype = c_int32
    library.opus_decoder_create.argtypes = [c_int32, c_int, POINTER(c_int)]
    library.opus_decoder_create.restype = c_void_p
    library.opus_decoder_destroy.argtypes = [c_void_p]
    library.opus_decoder_destroy.restype = None
    library.opus_decode_float.argtypes = [c_void_p, c_char_p, c_int32, c_void_p, c_int, c_int]
    library.opus_decode_float.restype = c_int
    # Variadic: with only the fixed arguments declared, ctypes passes the others by the platform's convention.
    library.opus_encoder_ctl.argtypes = [c_void_p, c_int]
    library.opus_encoder_ctl.restype = c_int
