"""Speaks with RHVoice's own library, which reports when each word begins; its command does not.

The calls and callbacks of ``RHVoice.h`` (RHVoice 1.14), through ctypes.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.train.synthetic_voices import RHVOICE, RHVOICE_RUSSIAN, Voice

SAMPLE_RATE = 24_000
"""The library's rate unless its settings differ; then its sound is not used."""
BLOCK_SAMPLES = 2400
"""Samples of a block: the library reports a word before the block in which it begins, without a finer
time."""

_RATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_SOUND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_uint, ctypes.c_void_p)
_PLACE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p)
_NAMED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Callbacks(ctypes.Structure):
    _fields_ = (
        ("set_sample_rate", _RATE),
        ("play_speech", _SOUND),
        ("process_mark", _NAMED),
        ("word_starts", _PLACE),
        ("word_ends", _PLACE),
        ("sentence_starts", _PLACE),
        ("sentence_ends", _PLACE),
        ("play_audio", _NAMED),
        ("done", _DONE),
    )


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("data_path", ctypes.c_char_p),
        ("config_path", ctypes.c_char_p),
        ("resource_paths", ctypes.c_void_p),
        ("callbacks", _Callbacks),
        ("options", ctypes.c_uint),
    )


class _SynthParams(ctypes.Structure):
    _fields_ = (
        ("voice_profile", ctypes.c_char_p),
        ("absolute_rate", ctypes.c_double),
        ("absolute_pitch", ctypes.c_double),
        ("absolute_volume", ctypes.c_double),
        ("relative_rate", ctypes.c_double),
        ("relative_pitch", ctypes.c_double),
        ("relative_volume", ctypes.c_double),
        ("punctuation_mode", ctypes.c_int),
        ("punctuation_list", ctypes.c_char_p),
        ("capitals_mode", ctypes.c_int),
        ("flags", ctypes.c_int),
    )


class RHVoice:
    """The synthesiser RHVoice in this process; not thread-safe.

    Raises:
        OSError: the library is not installed, or has no voices.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = library or ctypes.CDLL(ctypes.util.find_library("RHVoice") or "libRHVoice.so")
        for name in ("RHVoice_new_tts_engine", "RHVoice_new_message"):
            getattr(self._library, name).restype = ctypes.c_void_p
        self._sound: list[NDArray[np.int16]] = []
        self._samples = 0
        self._words: list[int] = []
        calls = {"play_speech": _SOUND(self._take), "word_starts": _PLACE(self._mark)}
        self._params = _InitParams(
            callbacks=_Callbacks(set_sample_rate=_RATE(lambda rate, _: rate == SAMPLE_RATE), **calls)
        )
        self._engine = ctypes.c_void_p(self._library.RHVoice_new_tts_engine(ctypes.byref(self._params)))
        if not self._engine:
            raise OSError("RHVoice found no voices; the variable RHVOICE_DATA_PATH names their folder")

    def _take(self, sound: ctypes._Pointer[ctypes.c_short], samples: int, _: int) -> int:
        self._sound.append(np.ctypeslib.as_array(sound, (samples,)).copy())
        self._samples += samples
        return 1

    def _mark(self, _position: int, _length: int, _data: int) -> int:
        self._words.append(self._samples)
        return 1

    def speak(self, voice: Voice, text: str) -> tuple[NDArray[np.int16], tuple[int, ...]]:
        """Return samples at :data:`SAMPLE_RATE`, and the first sample of each word, exact to half a block if
        the word is the only one in its block.

        Raises:
            ValueError: there is no such voice, or the text is empty.
        """
        rate, pitch = voice.of_its_own
        params = _SynthParams(
            voice_profile=voice.name.encode(), relative_rate=rate, relative_pitch=pitch, relative_volume=1.0
        )
        data = text.encode()
        length = ctypes.c_uint(len(data))
        said = self._library.RHVoice_new_message(self._engine, data, length, 0, ctypes.byref(params), None)
        if not said:
            raise ValueError(f"RHVoice has no voice {voice.name}")
        self._sound, self._samples, self._words = [], 0, []
        message = ctypes.c_void_p(said)
        self._library.RHVoice_speak(message)
        self._library.RHVoice_delete_message(message)
        if not self._sound:
            raise ValueError(f"RHVoice said nothing for {text!r}")
        pcm = np.concatenate(self._sound)
        return pcm, tuple(min(start, pcm.size) for start in _within_blocks(self._words))


def _within_blocks(marks: Sequence[int]) -> tuple[int, ...]:
    """Estimated starts of words that were reported before the blocks at ``marks``; those of one block share
    it."""
    starts = []
    for mark, group in groupby(marks):
        words = len(list(group))
        starts += [mark + BLOCK_SAMPLES * (2 * place + 1) // (2 * words) for place in range(words)]
    return tuple(starts)


def require_rhvoice() -> None:
    """Check that RHVoice's program, library and voices exist, before hours of work need them.

    Raises:
        SystemExit: one is missing.
    """
    told = "see https://github.com/RHVoice/RHVoice and CONTRIBUTING.md, or omit --rhvoice"
    if shutil.which("RHVoice-test") is None:
        raise SystemExit(f"not installed: RHVoice-test; {told}")
    try:
        speaker = RHVoice()
        for name in (*RHVOICE, *RHVOICE_RUSSIAN):
            speaker.speak(Voice("rhvoice", name), "one")
    except (OSError, ValueError) as error:
        raise SystemExit(f"{error}; {told}") from error
