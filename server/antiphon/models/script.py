"""Turns words into the text tokens of a delayed-streams speech model, one step at a time.

Zeghidour et al. 2025, "Streaming sequence-to-sequence learning with delayed streams modeling", section 3.3;
the rules are those of ``StateMachine`` and of ``script_to_entries`` in ``moshi/models/tts.py`` of
kyutai-labs/moshi. A caller's text becomes entries: words, and ``<break time="1.5s"/>``. The model requests
each word; the script then feeds the word's tokens, one per step. Models with a second text stream also get
the word that is ``lookahead`` words later.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from typing import Final, NamedTuple

from antiphon.errors import CheckpointFormatError, ProtocolError, UnsupportedError
from antiphon.models.spec import ModelSpec
from antiphon.models.spelling import Speller
from antiphon.models.strict import check_type

NEW_WORD: Final = 0
"""The model's output token that requests the next word; it is also the model's input when it gets a word."""
NOTHING: Final = -1
"""Value of the second stream that means no token."""

MAX_DELAY_S: Final = 60.0
MAX_LOOKAHEAD: Final = 16
"""Limits on the delay and the look-ahead of a model, above the values of any known model."""

SPARE_WORDS: Final = 8
"""Words that a row buffers in addition to its look-ahead: more words than it can start within one tick."""


@dataclass(frozen=True, slots=True)
class TextEntry:
    """One word for a tts row: its token ids, the number of steps before the next word, and whether the text
    ends with it.

    An entry without tokens is a pause of ``padding_frames``, the end of the text (with ``is_last``), or a
    text that is not spoken.
    """

    tokens: tuple[int, ...]
    text: str = ""
    padding_frames: int = 0
    is_last: bool = False

    @property
    def is_spoken(self) -> bool:
        """Whether the entry is a word or a pause."""
        return bool(self.tokens or self.padding_frames)


class Choices(NamedTuple):
    """The tokens fed to the model if it has requested a word, and if it has not."""

    word: int
    pad: int


@dataclass(frozen=True, slots=True)
class ScriptRules:
    """The rules of the script that a model was trained with.

    ``entries`` is the size of the model's text table, with which two tokens are packed into one. Audio comes
    ``audio_delay`` steps after its text, and the last codebook another ``acoustic_delay`` steps later.
    ``max_padding`` is the number of steps after which the model gets a word without a request.
    ``initial_padding`` steps come before the first word, so that it is not cut. ``final_padding`` steps of
    sound follow the end.
    """

    entries: int
    audio_delay: int
    acoustic_delay: int
    lookahead: int = 0
    pad: int = 3
    max_padding: int = 8
    initial_padding: int = 2
    final_padding: int = 4

    @classmethod
    def of(cls, spec: ModelSpec) -> ScriptRules:
        """The rules of a model, from its ``tts_config``.

        Raises:
            CheckpointFormatError: a delay or a lookahead out of range. UnsupportedError: the model is of
            another kind, or combines two voices.
        """
        if spec.lm is None:
            raise UnsupportedError(f"{spec.name} has no language model")
        config = spec.generation.get("tts_config", {})
        if config.get("multistream"):
            raise UnsupportedError(f"{spec.name} speaks with two voices at once, which cannot be run")
        delay_s, ahead = config.get("audio_delay", 0.0), config.get("second_stream_ahead", 0)
        check_type(delay_s, float, "tts_config.audio_delay")
        check_type(ahead, int, "tts_config.second_stream_ahead")
        for what, value, most in (
            ("audio_delay", delay_s, MAX_DELAY_S),
            ("second_stream_ahead", ahead, MAX_LOOKAHEAD),
        ):
            if not 0 <= value <= most:
                raise CheckpointFormatError(f"tts_config.{what} is {value}, it must be 0 to {most:g}")
        return cls(
            entries=spec.lm.text_card + 1,
            audio_delay=int(delay_s * spec.mimi.frame_rate + 1e-6),
            acoustic_delay=spec.lm.max_delay,
            lookahead=ahead,
            pad=spec.lm.text_padding_id,
        )

    @property
    def first_sound(self) -> int:
        """The first step after which a frame has all of its codebooks."""
        return self.audio_delay + self.acoustic_delay


@dataclass(slots=True)
class Script:
    """The position of one speaker in its text. For each step, read :attr:`choices`, run the model, and call
    :meth:`advance`.

    ``step`` counts the steps taken. Entries are numbered in order; ``begun`` has (step, index) of the entries
    that were started and whose audio is not complete. ``end_step`` is the step of the model's first request
    after the last word.
    """

    rules: ScriptRules
    step: int = 0
    end_step: int | None = None
    is_complete: bool = False
    begun: deque[tuple[int, int]] = field(default_factory=deque)
    _entries: deque[TextEntry] = field(default_factory=deque)
    _taken: int = 0
    _queued: deque[int] = field(default_factory=deque)
    _ahead: deque[int] = field(default_factory=deque)
    _may_pad: int = 0
    _must_pad: int = 0

    def __post_init__(self) -> None:
        """Begin with a pause, as the model does."""
        if not self.step:
            self._may_pad = self._must_pad = self.rules.initial_padding

    def copy(self) -> Script:
        """An independent copy of the script."""
        return replace(
            self,
            begun=deque(self.begun),
            _entries=deque(self._entries),
            _queued=deque(self._queued),
            _ahead=deque(self._ahead),
        )

    def to_bytes(self) -> bytes:
        """The state without the rules, as JSON, for :meth:`from_bytes`."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "rules"}
        values["_entries"] = [asdict(entry) for entry in self._entries]
        return json.dumps(values, default=list).encode()

    @classmethod
    def from_bytes(cls, rules: ScriptRules, data: bytes) -> Script:
        """A script under ``rules`` that continues where :meth:`to_bytes` was called.

        Raises:
            UnsupportedError: the bytes are not a script.
        """
        try:
            values = json.loads(data)
            values["_entries"] = deque(
                TextEntry(**{**entry, "tokens": tuple(entry["tokens"])}) for entry in values["_entries"]
            )
            values["begun"] = deque((int(step), int(index)) for step, index in values["begun"])
            for name in ("_queued", "_ahead"):
                values[name] = deque(values[name])
            paddings = {name: values.pop(name) for name in ("_may_pad", "_must_pad")}
            script = cls(rules, **values)
        except (ValueError, TypeError, KeyError) as error:
            raise UnsupportedError(f"{len(data)} bytes are no script: {error}") from error
        script._may_pad, script._must_pad = paddings["_may_pad"], paddings["_must_pad"]
        return script

    @property
    def has_room(self) -> bool:
        """Whether more entries should be added. The script keeps few entries; the others wait in the
        session.
        """
        return len(self._entries) < self.rules.lookahead + SPARE_WORDS

    def add(self, entries: tuple[TextEntry, ...]) -> None:
        """Add entries; entries after the end are not spoken."""
        for entry in entries:
            if self.is_complete:
                return
            if entry.is_spoken:
                self._entries.append(entry)
            self.is_complete = entry.is_last

    @property
    def can_step(self) -> bool:
        """Whether the next step is determined: later text cannot change its tokens.

        The speech therefore does not depend on the arrival times of the text.
        """
        if self.is_finished:
            return False
        if self.is_complete or self._queued or self._must_pad > 0:
            return True
        if not self._entries:
            return False
        if not self.rules.lookahead or not self._entries[0].tokens:
            return True
        return sum(bool(entry.tokens) for entry in self._entries) > self.rules.lookahead

    @property
    def is_finished(self) -> bool:
        """Whether all text has been spoken completely."""
        rules = self.rules
        return self.end_step is not None and self.step >= (
            self.end_step + rules.first_sound + rules.final_padding
        )

    @property
    def is_silent(self) -> bool:
        """Whether the next step only reads text and makes no audio token."""
        return self.step < self.rules.audio_delay

    @property
    def is_heard(self) -> bool:
        """Whether the next step completes a frame."""
        return self.step >= self.rules.first_sound

    @property
    def choices(self) -> Choices:
        """The tokens for the next step: see :class:`Choices`."""
        return Choices(self._fed(asked=True), self._fed(asked=False))

    def _gives_word(self, *, asked: bool) -> bool:
        """Whether the next step takes an entry, or detects the end."""
        if self._queued or self._must_pad > 0:
            return False
        return asked or self._may_pad <= 0

    def _fed(self, *, asked: bool) -> int:
        rules, entry = self.rules, self._entries[0] if self._entries else None
        is_word = False
        if self._gives_word(asked=asked):
            is_word = bool(entry.tokens) if entry is not None else self._is_ending
        if not rules.lookahead:
            return NEW_WORD if is_word else self._queued[0] if self._queued else rules.pad
        if is_word:
            return self._join(NEW_WORD, entry.tokens[0] if entry is not None else rules.pad)
        first = self._queued[0] if self._queued else rules.pad
        return self._join(self._ahead[0] if self._ahead else NOTHING, first)

    @property
    def _is_ending(self) -> bool:
        """Whether a model with a second stream has still to be fed the end."""
        return bool(self.rules.lookahead) and self.end_step is None

    def _join(self, second: int, first: int) -> int:
        return (second + 1) * self.rules.entries + first

    def advance(self, token: int) -> None:
        """Advance by one step, in which the model got the tokens of :attr:`choices` and returned
        ``token``.
        """
        is_pad = True
        if self._gives_word(asked=token == NEW_WORD):
            is_pad = not (self._begin_entry() if self._entries else self._end())
        if is_pad:
            self._may_pad = max(0, self._may_pad - 1)
            self._must_pad = max(0, self._must_pad - 1)
            if self._queued:
                self._queued.popleft()
            if self._ahead:
                self._ahead.popleft()
        elif self.rules.lookahead and self._queued:
            self._queued.popleft()
        self.step += 1

    def _end(self) -> bool:
        """Handle the end of the text; returns whether the end is being fed to the model."""
        is_ending = self._is_ending
        if self.end_step is None:
            self.end_step = self.step
        return is_ending

    def _begin_entry(self) -> bool:
        """Take the next entry; returns whether it is a word."""
        entry = self._entries.popleft()
        self.begun.append((self.step, self._taken))
        self._taken += 1
        self._must_pad = entry.padding_frames
        if not entry.tokens:
            return False
        self._queued.extend(entry.tokens)
        self._may_pad = self.rules.max_padding
        if self.rules.lookahead:
            later = (other.tokens for other in self._entries if other.tokens)
            self._ahead.extend(next(islice(later, self.rules.lookahead - 1, None), ()))
        return True

    def take_begun(self, frame: int) -> int | None:
        """Take the index of the entry that begins in audio frame ``frame``, counted from 0; None if no entry
        begins there.
        """
        if not self.begun or self.begun[0][0] != frame:
            return None
        return self.begun.popleft()[1]


MAX_BREAK_S: Final = 10.0
MAX_WORD_TOKENS: Final = 256
"""Maximum number of tokens of a word, twenty seconds of speech."""

PIECE_WORDS: Final = 64
"""Number of words tokenised at once: 1 ms of the event loop's time, or 4 ms if all words are respelled."""

SPEAKER: Final = 1
"""The token before the first word of a model with several voices, which selects the first voice."""

PADDING_BETWEEN: Final = 1
"""Steps between the tokens of a word and the next word; they make the articulation a little clearer."""

_PARTS: Final = re.compile(
    r'<break\s+time="([0-9]{1,9}(?:\.[0-9]{0,9})?)(m?)s"\s*/?>|\s+'
    r"|(</?(?:speak|voice|prosody|emphasis|say-as|sub|phoneme|audio|mark|lang|break|p|s)(?:\s[^<>]{0,200})?/?>)"
)
_REPLACED: Final = str.maketrans({"\u2019": "'", ":": " ", "(": None, ")": None})


class TextReader:
    """Reads the text of one session, in any portions that do not split words.

    ``encode`` converts a word to token ids, in the spelling of ``speller`` if there is one.
    """

    def __init__(
        self, spec: ModelSpec, encode: Callable[[str], Sequence[int]], speller: Speller | None = None
    ) -> None:
        """Begin without text."""
        self._encode, self._speller = encode, speller
        self._frame_rate = spec.mimi.frame_rate
        self._replaced = {} if spec.lm is None else _REPLACED  # only those were trained on text without them
        self._announces = "speaker_wavs" in spec.conditioners

    def read(self, text: str) -> list[TextEntry]:
        """The entries of a piece of text.

        Raises:
            ProtocolError: a word is too long.
        """
        return [entry for piece in self.pieces(text) for entry in piece]

    def pieces(self, text: str) -> Iterator[list[TextEntry]]:
        """The entries of a text, read on demand, about ``PIECE_WORDS`` words at a time.

        Raises:
            ProtocolError: a word is too long.
        """
        entries: list[TextEntry] = []
        text, start = text.translate(self._replaced), 0
        for number, part in enumerate(_PARTS.finditer(text), start=1):
            entries += self._word(text[start : part.start()])
            if part[3] is not None:
                entries.append(TextEntry((), part[3]))
            if part[1] is not None:
                seconds = min(float(part[1]) / (1000 if part[2] else 1), MAX_BREAK_S)
                entries.append(TextEntry((), padding_frames=max(1, round(seconds * self._frame_rate))))
            start = part.end()
            if number % PIECE_WORDS == 0 or len(entries) >= PIECE_WORDS:
                yield entries
                entries = []
        yield entries + self._word(text[start:])

    def _word(self, word: str) -> list[TextEntry]:
        if not word:
            return []
        if len(word) > 16 * MAX_WORD_TOKENS:
            raise ProtocolError(f"a word of {len(word)} letters, the limit is {16 * MAX_WORD_TOKENS}")
        tokens = tuple(self._encode(word))
        if self._speller is None or self._speller.is_known(word, tokens):
            return self._spoken(word, tokens)
        words, lost = self._speller.spell(word)
        if len(words) == 1 and not lost:
            return self._spoken(word, tuple(self._encode(words[0])))  # reported as the caller wrote it
        said = [entry for each in words for entry in self._spoken(each, tuple(self._encode(each)))]
        return said + [TextEntry((), each) for each in lost]

    def _spoken(self, word: str, tokens: tuple[int, ...]) -> list[TextEntry]:
        if len(tokens) > MAX_WORD_TOKENS:
            raise ProtocolError(f"a word of {len(tokens)} tokens, the limit is {MAX_WORD_TOKENS}")
        if not tokens:
            return []
        if self._announces:
            tokens, self._announces = (SPEAKER, *tokens), False
        return [TextEntry(tokens, word, max(0, PADDING_BETWEEN + len(tokens) - 1))]
