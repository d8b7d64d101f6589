"""A conversation in Kyutai's protocols, in which nothing is dropped."""

from __future__ import annotations

from antiphon.errors import AntiphonError
from antiphon.protocol import kyutai
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.routes.lossless import LosslessConversation
from antiphon.serve.transport.frames import frame
from antiphon.serve.transport.socket import Socket


def error_message(error: AntiphonError) -> kyutai.Error:
    """The words for a client: Kyutai's own where every row is taken, since its clients may look for them."""
    return kyutai.Error(wire_form(error).kyutai or str(error))


class KyutaiConversation(LosslessConversation):
    """What its recognition and its synthesis share."""

    def _greet(self, socket: Socket) -> None:
        self._say(socket, kyutai.Ready())

    def _say(self, socket: Socket, *messages: kyutai.ServerMessage) -> None:
        socket.write(b"".join(frame(kyutai.encode(message)) for message in messages))

    def _tell_error(self, socket: Socket, error: AntiphonError) -> None:
        self._say(socket, error_message(error))
