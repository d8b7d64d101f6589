"""Measures a talker's conversation: Full-Duplex-Bench's measures, and the turns that it answers and refuses.

Recordings are our own, made with held-out voices; the talker runs in this process, so that the times are the
model's and not those of a loaded machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from antiphon.arrays import FloatArray
from lab.train import duplex_tracks as tracks
from lab.train.domain import REFUSAL
from lab.train.duplex_accuracy import is_unfinished
from lab.train.duplex_rules import Speech, asides, overlap_s, stretches, taking_over
from lab.train.duplex_tracks import LISTEN_S, Track
from lab.train.outside import INTENTS as OUTSIDE
from lab.train.phrasings import PHRASINGS
from lab.train.questions import Utterance
from lab.train.rows import Reply, Talker

Heard = Sequence[tuple[Track, Reply]]


def measure(
    talker: Talker,
    asked: Sequence[Utterance],
    others: Sequence[Utterance],
    recordings: Mapping[str, FloatArray],
    count: int,
) -> dict[str, Any]:
    """Run all measurements: domain questions, other turns, and ``count`` tracks of every other kind."""

    def heard(some: Sequence[Track]) -> Heard:
        return list(zip(some, talker.listen([one.pcm for one in some]), strict=True))

    turns = heard(tracks.questions([*asked, *others]))
    empty = heard(tracks.without_speech(count) + tracks.recorded(recordings))
    return {
        "turn_taking": turn_taking([one for one in turns if one[0].kind in PHRASINGS]),
        "pauses": pause_handling(heard(tracks.paused(count))),
        "interruptions": interrupting(heard(tracks.interruptions(asked, count))),
        "backchannel": backchannel(heard(tracks.long_speech(count // 2))),
        "confusion": confusion([*turns, *empty]),
        "answers": answering([one for one in turns if one[0].kind in PHRASINGS]),
        "recordings": {
            name: len(reply.words)
            for name, reply in zip(recordings, talker.listen(list(recordings.values())), strict=True)
        },
    }


def turn_taking(heard: Heard) -> dict[str, Any]:
    """Measure take-over and latency after the end of a question."""
    return dict(
        taking_over(
            (Speech.between(reply, track.end_s - 0.5, track.end_s + LISTEN_S), track.end_s)
            for track, reply in heard
        )
    )


def pause_handling(heard: Heard) -> dict[str, Any]:
    """Measure, by the length of a pause, the replies that begin before the turn ends, and the correct answers
    after its end."""

    def share(some: Heard) -> float:
        took = [Speech.between(reply, 0.0, track.end_s).is_take_over for track, reply in some]
        return round(sum(took) / max(1, len(took)), 4)

    def pause_s(track: Track) -> float:
        return round(track.parts[1][0] - track.parts[0][1], 1)

    lengths = sorted({pause_s(track) for track, _ in heard})
    right = sum(reply.text(track.end_s) == track.right for track, reply in heard)
    return {
        "turns": len(heard),
        "take_over": share(heard),
        "by_pause_s": {
            str(one): share([pair for pair in heard if pause_s(pair[0]) == one]) for one in lengths
        },
        "right_after": round(right / max(1, len(heard)), 4),
    }


def interrupting(heard: Heard) -> dict[str, Any]:
    """Measure how answers in progress react when the caller begins to speak: the length of the overlap, and
    the continuation."""
    counted = [
        (track, reply)
        for track, reply in heard
        if any(start_s < track.parts[1][0] < end_s for start_s, end_s in stretches(reply.pcm))
    ]
    stops_s = []
    for track, reply in counted:
        begun_s, over_s = track.parts[1]
        running = [one for one in stretches(reply.pcm) if one[0] < begun_s]
        stops_s.append(overlap_s([(begun_s, over_s)], running))
    after = taking_over(
        (Speech.between(reply, track.end_s, track.end_s + LISTEN_S), track.end_s) for track, reply in counted
    )
    return {
        "calls": len(heard),
        "interrupted": len(counted),
        "stop_ms_median": round(1000 * float(np.median(stops_s)), 1) if stops_s else None,
        "stop_ms_p90": round(1000 * float(np.percentile(stops_s, 90)), 1) if stops_s else None,
        "after": dict(after),
    }


def backchannel(heard: Heard) -> dict[str, Any]:
    """Measure take-overs and backchannels while a caller speaks for a long time."""
    found = [asides(reply, 0.0, track.end_s) for track, reply in heard]
    seconds = sum(track.end_s for track, _ in heard)
    return {
        "turns": len(heard),
        "seconds": round(seconds, 1),
        "take_over": round(sum(is_over for is_over, _ in found) / max(1, len(found)), 4),
        "frequency_hz": round(sum(count for _, count in found) / max(1.0, seconds), 4),
    }


def confusion(heard: Heard) -> dict[str, dict[str, int]]:
    """Count turns of the domain ("question"), other speech and no speech by reply: answer, refusal or
    silence."""
    table: dict[str, dict[str, int]] = {}
    for track, reply in heard:
        kind = "question" if track.kind in PHRASINGS else track.kind
        text = reply.text()
        row = table.setdefault(kind, {"answered": 0, "refused": 0, "silent": 0})
        is_refused = set(text.split(" ")) <= set(REFUSAL.split()) and text != ""
        row["silent" if not text else "refused" if is_refused else "answered"] += 1
    spoken = [row for kind, row in table.items() if kind in (*OUTSIDE, "half")]
    every = {name: sum(row[name] for row in spoken) for name in ("answered", "refused", "silent")}
    return {**table, "outside, all speech": every}


def answering(heard: Heard) -> dict[str, Any]:
    """Measure the answers to questions of the domain: correct, unfinished, refused, by kind, surroundings and
    voice."""

    def share(some: Heard) -> dict[str, Any]:
        said = [(track.right, reply.text()) for track, reply in some]
        count = max(1, len(said))
        return {
            "asked": len(said),
            "right": round(sum(right == text for right, text in said) / count, 4),
            "unfinished": round(sum(is_unfinished(text) for _, text in said) / count, 4),
            "refused": round(sum(text in ("", REFUSAL) for _, text in said) / count, 4),
        }

    voices = sorted({voice_of(track) for track, _ in heard})
    around = sorted({name for track, _ in heard for name in track.around})
    return {
        "all": share(heard),
        "clean": share([one for one in heard if one[0].is_clean]),
        "in_surroundings": share([one for one in heard if not one[0].is_clean]),
        "by_intent": {name: share([one for one in heard if one[0].kind == name]) for name in PHRASINGS},
        "by_surroundings": {name: share([one for one in heard if name in one[0].around]) for name in around},
        "by_voice": {name: share([one for one in heard if voice_of(one[0]) == name]) for name in voices},
    }


def voice_of(track: Track) -> str:
    """Return the speaker without the accent: a variant of espeak-ng or another voice, and its
    modification."""
    return track.voice.split("+")[-1].strip()
