"""The text stream that trains a synthesiser to speak a text, made by the server's
:class:`antiphon.models.script.Script`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.models.script import NEW_WORD, Script, ScriptRules, TextEntry, TextReader
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind
from lab.train.talker_tokenizer import PAD, TalkerTokenizer

FRAME_RATE: Final = 12.5


@dataclass(frozen=True, slots=True)
class Cues:
    """The text of one script by step: the input, int64 ``[S]``, and the model's expected output.

    ``said`` int64 ``[S]`` requests the next entry or not; ``counts`` bool ``[S]`` if that is the model's
    choice. ``words_at`` are the steps in which words began.
    """

    fed: NDArray[np.int64]
    said: NDArray[np.int64]
    counts: NDArray[np.bool_]
    words_at: tuple[int, ...]


def reader_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Return the server's specification for a synthesiser's configuration, as far as its texts are
    concerned."""
    lm = LMSpec(
        **{key: config[key] for key in ("dim", "num_layers", "num_heads", "context", "n_q", "dep_q", "card")},
        text_card=config["text_card"],
        delays=tuple(config["delays"]),
        text_padding_id=PAD,
        config=config,
    )
    mimi = MimiSpec(24_000, FRAME_RATE, config["n_q"], config["card"])
    generation = {"tts_config": config["tts_config"]}
    return ModelSpec("reader", PipelineKind.TTS, "tts", mimi, lm, generation=generation)


def entries_of(text: str, spec: ModelSpec, tokenizer: TalkerTokenizer) -> list[TextEntry]:
    """Return the entries of a text, and the end after them."""
    return [*TextReader(spec, tokenizer.encode).read(text), TextEntry((), is_last=True)]


def cues(entries: Sequence[TextEntry], starts: Sequence[int], rules: ScriptRules, steps: int) -> Cues:
    """Run a script with a model that always requests words in time; returns its text by step.

    ``starts`` are the frames of sound in which entries begin, including the end (the last entry). The script
    deviates if they are closer together or further apart than it allows.
    """
    script = Script(rules)
    script.add(tuple(entries))
    fed = np.full(steps, rules.pad, np.int64)
    said = np.full(steps, rules.pad, np.int64)
    counts = np.zeros(steps, np.bool_)
    for step in range(steps):
        begun = len(script.begun)
        wants = script.end_step is None and step >= starts[begun]
        asking, waiting = script.copy(), script.copy()
        asking.advance(NEW_WORD)
        waiting.advance(rules.pad)
        said[step] = NEW_WORD if wants else rules.pad
        counts[step] = (len(asking.begun), asking.end_step) != (len(waiting.begun), waiting.end_step)
        fed[step] = script.choices.word if wants else script.choices.pad
        script = asking if wants else waiting
    words = tuple(step for step, index in script.begun if entries[index].tokens)
    return Cues(fed, said, counts, words)
