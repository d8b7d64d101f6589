"""Values that a front end and an engine exchange about a call that changes its connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from msgspec import Meta

from antiphon.models.sampling import SamplingParameters

Call: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
"""The id of a call."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
"""Frames, messages or interruptions of one call."""

CountOrNone: TypeAlias = Annotated[int, Meta(ge=-1, le=2**53)]
"""The number of a frame or a message, -1 for none."""

Key: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""The SHA-256 of a client's token."""

Owner: TypeAlias = Annotated[str, Meta(max_length=256)]
"""The name of an API key."""

Note: TypeAlias = tuple[Count, Annotated[bytes, Meta(max_length=65_536)]]
"""A numbered message: its number, and its bytes as they are sent, pieces of text or events."""


@dataclass(frozen=True, slots=True)
class ResumeClaim:
    """What a front end shows to go on with a call.

    ``key`` is the SHA-256 of the client's token, ``new_key`` that of its next one, ``owner`` the name of its
    API key. The client has numbered messages up to ``seq`` and audio up to ``frame``, -1 for none; of audio
    that it lacks, ``replay_frames`` are sent again at most.
    """

    key: Key
    new_key: Key
    owner: Owner
    seq: CountOrNone
    frame: CountOrNone
    replay_frames: Annotated[int, Meta(ge=0, le=1024)]


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a front end needs to go on with a call of another connection.

    ``call`` is the id of its first session. ``notes`` are numbered messages that the client lacks, the next
    one has ``next_seq``. The text of replies to frames below ``told_frame`` is among the notes, or was.
    ``replay_from`` is the first frame whose reply may still come; ``replayed`` replies were given to another
    connection before. ``unrecorded_in`` and ``unrecorded_out`` are frames of connections whose front end
    ended before it could record their use.
    """

    call: str
    parameters: SamplingParameters
    notes: tuple[Note, ...]
    next_seq: int
    told_frame: int
    replay_from: int
    replayed: int = 0
    unrecorded_in: int = 0
    unrecorded_out: int = 0
