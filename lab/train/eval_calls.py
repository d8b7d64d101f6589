"""The evaluation of recogniser and synthesiser: held-out questions are transcribed, held-out answers
synthesised."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import aiohttp
import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from antiphon.protocol import kyutai, kyutai_tts
from antiphon_client.address import ServerAddress
from antiphon_client.tts_probe import TtsRecord
from lab.train.answers import Answer
from lab.train.augment import coloured_noise
from lab.train.dictation import Marks, Told, marks
from lab.train.ear import Ear, words_wrong
from lab.train.outside import WORDLESS
from lab.train.passages import PAUSES_S
from lab.train.questions import Utterance
from lab.train.recital import held_out_answers, share_understood
from lab.train.recogniser import answers_grammar, recognise
from lab.train.synthetic_voices import SAMPLE_RATE
from lab.train.word_times import Listener

Note = Callable[[int, int], None]
LEAD_S, TRAIL_S = 1.0, 3.2
SNR_DB: Final = 20.0
GAIN: Final = 0.6
CHUNK_SAMPLES: Final = 1920
LIKELY: Final = 0.5
MARK: Final = 1
MAX_MESSAGE_BYTES: Final = 1 << 20
WAITING: Final = {"wait": "30"}
"""Seconds until a row is free after its last caller has disconnected."""


@dataclass(frozen=True, slots=True)
class Dictated:
    """A question, its transcript, and the probabilities of each pause by frame of audio.

    For speech outside the domain ``said`` is empty.
    """

    utterance: Utterance
    is_noisy: bool
    said: Told
    told: Told
    pauses: NDArray[np.float32]

    def pause_after_s(self, head: int) -> float | None:
        """Return the seconds from the end of the question to the frame from which a pause stays likely;
        negative if too soon, None if never."""
        likely = self.pauses[:, head] > LIKELY
        if not likely.size or not likely[-1]:
            return None
        unlikely = np.flatnonzero(~likely)
        frame = 0 if not unlikely.size else int(unlikely[-1]) + 1
        end_s = LEAD_S + self.utterance.pcm.size / SAMPLE_RATE
        return (frame + 1) * CHUNK_SAMPLES / SAMPLE_RATE - end_s


async def dictate_all(
    server: str, utterances: Sequence[Utterance], callers: int, note: Note
) -> list[Dictated]:
    """Transcribe all utterances as fast as the server reads; every second question has noise 20 dB below
    it."""
    listener, results = Listener(), list[Dictated]()
    address = ServerAddress.parse(server)
    async with aiohttp.ClientSession() as http:
        for at in range(0, len(utterances), callers):
            some = list(enumerate(utterances))[at : at + callers]
            calls = [_dictate(http, address, one, index % 2 == 1, index, listener) for index, one in some]
            results += await asyncio.gather(*calls)
            note(len(results), len(utterances))
    return results


async def _dictate(
    http: aiohttp.ClientSession,
    address: ServerAddress,
    one: Utterance,
    is_noisy: bool,
    seed: int,
    listener: Listener,
) -> Dictated:
    starts = listener.times(one).starts_s
    said = [(LEAD_S + start, word) for start, word in zip(starts, one.turn.question.split(), strict=False)]
    told: Told = []
    pauses: list[tuple[float, ...]] = []
    async with http.ws_connect(address.speech(WAITING), max_msg_size=MAX_MESSAGE_BYTES) as socket:
        pcm = _heard(one, is_noisy, np.random.default_rng(seed))
        for first in range(0, pcm.size, CHUNK_SAMPLES):
            await socket.send_bytes(kyutai.encode(kyutai.Audio(pcm[first : first + CHUNK_SAMPLES])))
        await socket.send_bytes(kyutai.encode(kyutai.Marker(MARK)))
        async for message in socket:
            match kyutai.decode_server(message.data):
                case kyutai.Word(text=text, start_time=start_s):
                    told.append((start_s, text))
                case kyutai.Step(prs=prs):
                    pauses.append(prs)
                case kyutai.Marker():
                    break
                case kyutai.Error(message=words):
                    raise RuntimeError(f"the server answered with an error: {words}")
    if not starts and one.turn.intent not in WORDLESS:  # its words are scored anyway
        said = [(0.0, word) for word in one.turn.question.split()]
    return Dictated(one, is_noisy, said, told, np.array(pauses, np.float32).reshape(len(pauses), -1))


def _heard(one: Utterance, is_noisy: bool, rng: np.random.Generator) -> FloatArray:
    lead, trail = np.zeros(int(LEAD_S * SAMPLE_RATE)), np.zeros(int(TRAIL_S * SAMPLE_RATE))
    pcm = np.concatenate([lead, one.pcm, trail]).astype(np.float32)
    if is_noisy:
        noise = coloured_noise(rng, pcm.size, 1.0)
        level = float(np.sqrt(np.mean(one.pcm**2))) * 10 ** (-SNR_DB / 20)
        pcm = pcm + noise * level
    return (pcm * GAIN).clip(-1, 1).astype(np.float32)


def dictation_report(results: Sequence[Dictated]) -> dict[str, Any]:
    """Report word error, the error of word starts, the detection of pauses, and silence on speech that is no
    question.

    ``doubled`` words are written twice in succession but spoken once; ``lost_to_silence`` is the share of the
    spoken words in questions without any transcript.
    """
    outside = [one for one in results if one.utterance.turn.intent in WORDLESS]
    results = [one for one in results if one.utterance.turn.intent not in WORDLESS]

    def scored(some: Sequence[Dictated]) -> Marks:
        return marks([one.said for one in some], [one.told for one in some])

    clean = scored([one for one in results if not one.is_noisy])
    noisy = scored([one for one in results if one.is_noisy])
    timed = scored([one for one in results if one.said[0][0] > 0])
    wrong = [one for one in results if scored([one]).word_error > 0]
    words = sum(len(one.said) for one in results)
    return {
        "questions": len(results),
        "word_error": round(scored(results).word_error, 4),
        "clean": round(clean.word_error, 4),
        "noise_20_db": round(noisy.word_error, 4),
        "doubled": sum(max(0, _doubled(one.told) - _doubled(one.said)) for one in results),
        "lost_to_silence": round(sum(len(one.said) for one in results if not one.told) / max(1, words), 4),
        "start_error_ms": timed.start_error_ms,
        "pauses": {str(length_s): _pause_report(results, head) for head, length_s in enumerate(PAUSES_S)},
        "wrong": [
            {
                "said": one.utterance.turn.question,
                "voice": one.utterance.voice.name,
                "written": " ".join(word for _, word in one.told),
            }
            for one in wrong
        ],
        "outside": silence_report(outside),
    }


def _doubled(words: Told) -> int:
    return sum(one == other for (_, one), (_, other) in pairwise(words))


def silence_report(outside: Sequence[Dictated]) -> dict[str, Any]:
    """Report, for each kind of speech outside the domain, the share without transcript, and the number of
    words."""
    kinds = sorted({one.utterance.turn.intent for one in outside})
    table = {"all": outside} | {
        kind: [one for one in outside if one.utterance.turn.intent == kind] for kind in kinds
    }
    return {
        kind: {
            "turns": len(some),
            "silent": round(sum(not one.told for one in some) / max(1, len(some)), 4),
            "words": sum(len(one.told) for one in some),
        }
        for kind, some in table.items()
    }


def _pause_report(results: Sequence[Dictated], head: int) -> dict[str, Any]:
    after = [one.pause_after_s(head) for one in results if one.pauses.size]
    heard = [one for one in after if one is not None]
    return {
        "heard": round(len(heard) / max(1, len(after)), 4),
        "too_soon": round(sum(one < 0 for one in heard) / max(1, len(after)), 4),
        "median_ms": round(statistics.median(heard) * 1000, 1) if heard else None,
    }


async def read_all(
    server: str, texts: Sequence[str], callers: int, note: Note, voice: str, *, may_refuse: bool = False
) -> list[TtsRecord]:
    """Synthesise every text in one voice, ``callers`` texts at a time.

    Where the server may refuse, a text of unknown words only has no sound.

    Raises:
        RuntimeError: the server answered with an error.
    """
    results: list[TtsRecord] = []
    query = {"format": kyutai_tts.SpeechFormat.PCM_PACKED.value, "voice": voice, **WAITING}
    url = ServerAddress.parse(server).tts(query)
    async with aiohttp.ClientSession() as http:
        for at in range(0, len(texts), callers):
            some = await asyncio.gather(*(_read(http, url, text) for text in texts[at : at + callers]))
            errors = [one.error for one in some if one.error]
            if errors and not may_refuse:
                raise RuntimeError(f"the server answered with an error: {errors[0]}")
            results += some
            note(len(results), len(texts))
    return results


async def _read(http: aiohttp.ClientSession, url: str, text: str) -> TtsRecord:
    speech = TtsRecord()
    async with http.ws_connect(url, max_msg_size=MAX_MESSAGE_BYTES) as socket:
        speech.sent_s = time.monotonic()
        for message in (kyutai_tts.Text(text), kyutai_tts.Eos()):
            await socket.send_bytes(kyutai_tts.encode_client(message))
        async for reply in socket:
            if reply.type is aiohttp.WSMsgType.BINARY:
                speech.hear(kyutai_tts.decode_server(reply.data), time.monotonic())
    return speech


def sounds_of(speeches: Sequence[TtsRecord]) -> list[FloatArray]:
    """Return the sound of each reading, ``[samples]``."""
    return [np.concatenate([np.zeros(1, np.float32), *one.pieces]) for one in speeches]


def reading_report(
    texts: Sequence[str],
    speeches: Sequence[TtsRecord],
    taught: Mapping[str, Answer],
    coded: Callable[[Answer], FloatArray],
    ear: Ear | None = None,
) -> dict[str, Any]:
    """Report the word errors of a recogniser on the synthesiser's speech, with two bounds: the teacher's
    speech, and chance.

    The recogniser first uses the grammar of the answers, in which it rarely mishears a teacher, and then
    general English, in which the two errors can be compared. ``taught`` are the teacher's versions of the
    texts, and ``coded`` one of them in the training data after the codec: the synthesiser cannot be
    understood better than its training data. With an independent recogniser, its errors on the same three.
    """
    sounds = sounds_of(speeches)
    own_voice = [taught[text].pcm for text in texts]
    bound = [coded(taught[text]) for text in texts]
    grammar = answers_grammar()
    heard = recognise(sounds, grammar)
    half = len(heard) // 2
    error, teachers_error, bound_error = (
        1 - share_understood(texts, recognise(some)) for some in (sounds, own_voice, bound)
    )
    whisper = {}
    if ear is not None:
        kinds = (("model", sounds), ("teacher", own_voice), ("teacher_coded", bound))
        whisper = {"whisper": {name: asdict(words_wrong(texts, ear.hear(some))) for name, some in kinds}}
    return whisper | {
        "answers": len(texts),
        "words_understood": round(share_understood(texts, heard), 4),
        "original_voice": round(share_understood(texts, recognise(own_voice, grammar)), 4),
        "chance": round(share_understood(texts, heard[half:] + heard[:half]), 4),
        "english_word_error": round(error, 4),
        "english_word_error_of_teacher": round(teachers_error, 4),
        "english_word_error_of_teacher_coded": round(bound_error, 4),
        "times_the_teachers": round(error / max(teachers_error, 1e-9), 2),
        "first_sound_ms": round(statistics.median(one.first_audio_ms for one in speeches), 1),
        "real_time_factor": round(statistics.median(one.real_time_factor for one in speeches), 2),
    }


def held_out_texts(count: int) -> list[str]:
    """Return ``count`` texts to synthesise: answers outside a synthesiser's training, repeated as needed."""
    texts = held_out_answers(count)
    return [texts[index % len(texts)] for index in range(count)]
