"""Speaks with espeak-ng's own library, which reports when each word begins; its command does not.

``espeak_Synth`` and the events of ``speak_lib.h`` (espeak-ng 1.51), through ctypes.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lab.train.synthetic_voices import Voice

SYNCHRONOUS = 2
RATE, PITCH = 1, 3
CHARACTERS = 1
UTF8 = 1
WORD_EVENT = 1


class _Voice(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Espeak:
    """The synthesiser espeak-ng in this process; not thread-safe, one per process.

    Raises:
        OSError: the library is not installed (Debian: espeak-ng).
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(ctypes.util.find_library("espeak-ng") or "libespeak-ng.so.1")
        self.sample_rate = int(self._library.espeak_Initialize(SYNCHRONOUS, 0, None, 0))
        self._sound: list[NDArray[np.int16]] = []
        self._words: list[tuple[int, int]] = []
        self._callback = _CALLBACK(self._take)
        self._library.espeak_SetSynthCallback(self._callback)

    def _take(self, sound: ctypes._Pointer[ctypes.c_short], samples: int, events: Sequence[_Event]) -> int:
        if sound and samples > 0:
            self._sound.append(np.ctypeslib.as_array(sound, (samples,)).copy())
        index = 0
        while events[index].type:
            event = events[index]
            if event.type == WORD_EVENT and event.length:
                self._words.append((event.text_position - 1, event.sample))
            index += 1
        return 0

    def speak(self, voice: Voice, text: str) -> tuple[NDArray[np.int16], tuple[int, ...]]:
        """Return samples at :attr:`sample_rate`, and the first sample of each word.

        Words that espeak-ng joins ("of the") share their time by their letters.

        Raises:
            ValueError: there is no such voice.
        """
        name = voice.name.encode()
        nearest = _Voice(languages=name)  # the command's choice for an unknown name
        if self._library.espeak_SetVoiceByName(name) and self._library.espeak_SetVoiceByProperties(
            ctypes.byref(nearest)
        ):
            raise ValueError(f"espeak-ng has no voice {voice.name}")
        self._library.espeak_SetParameter(RATE, voice.words_per_minute, 0)
        self._library.espeak_SetParameter(PITCH, voice.pitch, 0)
        self._sound, self._words = [], []
        data = text.encode()
        self._library.espeak_Synth(data, len(data) + 1, 0, CHARACTERS, 0, UTF8, None, None)
        pcm = np.concatenate(self._sound)
        return pcm, _spread(text, self._words, pcm.size)


def _spread(text: str, told: Sequence[tuple[int, int]], samples: int) -> tuple[int, ...]:
    """The first sample of each word, from (letter, sample) pairs that may lack some of the words."""
    places = [at for at, letter in enumerate(text) if letter != " " and (at == 0 or text[at - 1] == " ")]
    letters = [letter for letter, _ in told] + [len(text)]
    times = [sample for _, sample in told] + [samples]
    return tuple(round(float(np.interp(place, letters, times))) for place in places)
