"""The text state machine compared with upstream's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moshi.models.tts import Entry, StateMachine, TokenIds

from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.script import NEW_WORD, Script, ScriptRules, TextEntry
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind

ENTRIES = 101
RULES = ScriptRules(entries=ENTRIES, audio_delay=16, acoustic_delay=2)

words = st.builds(
    TextEntry,
    tokens=st.lists(st.integers(4, 100), min_size=1, max_size=6).map(tuple),
    padding_frames=st.integers(0, 6),
)
breaks = st.builds(TextEntry, tokens=st.just(()), padding_frames=st.integers(1, 9))
scripts = st.lists(words | breaks, max_size=12)
said = st.lists(st.sampled_from([0, 3, 7]), min_size=150, max_size=150)


def upstream(entries: Sequence[TextEntry], tokens: Sequence[int], lookahead: int) -> tuple[list[int], Any]:
    machine = StateMachine(TokenIds(ENTRIES), lookahead, max_padding=8, initial_padding=2)
    state = machine.new_state([Entry(list(it.tokens), it.text, it.padding_frames) for it in entries])
    return [machine.process(step, state, token)[0] for step, token in enumerate(tokens)], state


def run(script: Script, tokens: Sequence[int]) -> list[int]:
    fed = []
    for token in tokens:
        if not script.can_step:
            break
        choices = script.choices
        fed.append(choices.word if token == NEW_WORD else choices.pad)
        script.advance(token)
    return fed


@given(entries=scripts, tokens=said, lookahead=st.integers(0, 3))
def test_what_is_fed_and_when_words_begin_is_upstreams(
    entries: list[TextEntry], tokens: list[int], lookahead: int
) -> None:
    script = Script(replace(RULES, lookahead=lookahead))
    script.add((*entries, TextEntry((), is_last=True)))
    fed = run(script, tokens)
    expected, state = upstream(entries, tokens, lookahead)
    assert fed == expected[: len(fed)]
    assert script.end_step == state.end_step
    assert [step for step, _ in script.begun] == state.consumption_times
    assert [index for _, index in script.begun] == list(range(len(script.begun)))
    assert script.is_finished == (len(fed) < len(tokens))
    if script.end_step is not None and script.is_finished:
        assert len(fed) == script.end_step + 16 + 2 + 4


@settings(max_examples=40)
@given(entries=scripts, tokens=said, lookahead=st.integers(0, 3), data=st.data())
def test_how_fast_the_text_comes_changes_nothing(
    entries: list[TextEntry], tokens: list[int], lookahead: int, data: st.DataObject
) -> None:
    rules = replace(RULES, lookahead=lookahead)
    whole, slow = Script(rules), Script(rules)
    end = TextEntry((), is_last=True)
    whole.add((*entries, end))
    waiting, fed = [*entries, end], []
    for token in tokens:
        while waiting and (not slow.can_step or data.draw(st.booleans())):
            slow.add((waiting.pop(0),))
        fed += run(slow, [token])
        if data.draw(st.integers(0, 9)) == 0:
            slow = slow.copy()
    assert fed == run(whole, tokens)
    assert slow.begun == whole.begun


@given(scripts, said)
def test_a_copy_goes_on_by_itself(entries: list[TextEntry], tokens: list[int]) -> None:
    script = Script(replace(RULES, lookahead=2))
    script.add((*entries, TextEntry((), is_last=True)))
    run(script, tokens[:20])
    copy = script.copy()
    assert run(script, tokens[20:]) == run(copy, tokens[20:])


def test_a_script_waits_for_the_words_it_has_to_show_and_no_longer() -> None:
    script = Script(replace(RULES, lookahead=2))
    assert run(script, [0] * 9) == [3, 3], "a model begins with a pause, whatever is to come"
    script.add((TextEntry((9,)), TextEntry((8,))))
    assert not script.can_step
    script.add((TextEntry((7, 6)),))
    assert run(script, [0] * 9) == [ENTRIES + 9], "the next word would want to see another"
    script.add((TextEntry((5,)),))
    assert run(script, [3, 0]) == [(7 + 1) * ENTRIES + 3, ENTRIES + 8]
    script.add((TextEntry((4,), is_last=True), TextEntry((99,))))
    assert len(run(script, [0] * 99)) == 4 + 16 + 2 + 4
    assert script.is_finished
    assert [script.take_begun(frame) for frame in range(9)] == [None, None, 0, None, 1, 2, None, 3, 4]


def test_room_is_told() -> None:
    script = Script(RULES)
    assert script.has_room
    script.add((TextEntry((9,)),) * 8)
    assert not script.has_room


def spec_with(**tts_config: Any) -> ModelSpec:
    mimi = MimiSpec(sample_rate=24000, frame_rate=12.5, codebooks=8, cardinality=64)
    lm = LMSpec(
        dim=8,
        num_layers=1,
        num_heads=1,
        context=8,
        n_q=8,
        dep_q=8,
        card=64,
        text_card=100,
        delays=(0, 0, *[2] * 7),
    )
    return ModelSpec("m", PipelineKind.TTS, "tts", mimi, lm, generation={"tts_config": tts_config})


def test_rules_come_from_the_checkpoint() -> None:
    rules = ScriptRules.of(spec_with(audio_delay=1.28, second_stream_ahead=2))
    assert rules == ScriptRules(101, audio_delay=16, acoustic_delay=2, lookahead=2)
    assert rules.first_sound == 18
    with pytest.raises(CheckpointFormatError, match=r"tts_config.audio_delay is -1.0, it must be 0 to 60"):
        ScriptRules.of(spec_with(audio_delay=-1.0))
    with pytest.raises(CheckpointFormatError, match=r"second_stream_ahead is 99, it must be 0 to 16"):
        ScriptRules.of(spec_with(second_stream_ahead=99))
    with pytest.raises(UnsupportedError, match="m speaks with two voices at once"):
        ScriptRules.of(spec_with(multistream=True))
    with pytest.raises(UnsupportedError, match="m has no language model"):
        ScriptRules.of(replace(spec_with(), lm=None))
