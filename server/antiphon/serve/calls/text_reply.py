"""An agent's answer to a text, as text: it needs no row of a model, and has no sound."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Final

from antiphon.agent.chat_stream import ReplyEnded, TextPiece, TokensUsed
from antiphon.agent.history import History, HistoryEntry, Role
from antiphon.agent.speakable import SpeakableText
from antiphon.agent.text_model import TextRequest
from antiphon.agent.values import CANCELLED, COMPLETED, CUT, FAILED
from antiphon.errors import ServerFullError, TextModelError
from antiphon.serve.calls.agent import AgentParts

MAX_RUNNING: Final = 16
"""Maximum number of concurrent replies of an agent, including spoken ones, because each is a request to its
text model. Above it a text is refused. Spoken replies are never refused.
"""

RETRY_S: Final = 5


class TextConversation:
    """The texts of one client and the agent's answers; ``tokens`` counts the tokens of the text model."""

    def __init__(self, agent: AgentParts, clock: Callable[[], float]) -> None:
        """Start without texts."""
        self.agent, self._clock = agent, clock
        self.tokens = TokensUsed(0, 0)
        self._history, self._entries = History(agent.max_history_tokens), 0

    def _put(self, role: Role, text: str) -> None:
        self._entries += 1
        self._history.put(str(self._entries), HistoryEntry(role, text))

    async def answer(self, text: str) -> AsyncGenerator[str]:
        """The words of the answer as they arrive, each followed by a space.

        Raises:
            ServerFullError: the agent is at its limit of replies.
            TextModelError: the text model fails.
        """
        agent, metrics = self.agent, self.agent.metrics
        if agent.text_model.running >= MAX_RUNNING:
            raise ServerFullError(
                f"the agent {agent.name} writes {MAX_RUNNING} replies, the limit is {MAX_RUNNING}",
                retry_after_s=RETRY_S,
            )
        self._put(Role.USER, text)
        messages = self._history.messages(agent.settings.instructions)
        request = TextRequest(messages, agent.settings.max_tokens)
        words, said, asked_s, outcome = SpeakableText(), "", self._clock(), CANCELLED
        try:
            async with contextlib.aclosing(agent.text_model.reply(request)) as pieces:
                async for piece in pieces:
                    if not said and isinstance(piece, TextPiece):
                        metrics.record_first_token(self._clock() - asked_s)
                    part = words.feed(piece.text) if isinstance(piece, TextPiece) else ""
                    if isinstance(piece, TokensUsed):
                        self._count(piece)
                    if isinstance(piece, ReplyEnded):
                        part, outcome = words.finish(), CUT if piece.is_cut else COMPLETED
                    said += part
                    if part:
                        yield part
        except TextModelError:
            outcome = FAILED
            raise
        finally:
            metrics.ended(outcome)
            if said:
                self._put(Role.ASSISTANT, said.strip())

    def _count(self, used: TokensUsed) -> None:
        self.agent.metrics.used(used.tokens_in, used.tokens_out)
        before = self.tokens
        self.tokens = TokensUsed(before.tokens_in + used.tokens_in, before.tokens_out + used.tokens_out)
