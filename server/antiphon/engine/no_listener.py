"""The listener of a call that no connection has."""

from __future__ import annotations

from antiphon.errors import AntiphonError
from antiphon.ipc.resumption import Resumption


class NoListener:
    """:class:`antiphon.ipc.link.Listener` of a call that no front end has."""

    is_notified = False

    def admitted(self, lease: int) -> None:
        """Nothing."""

    def resumed(self, resumption: Resumption) -> None:
        """Nothing."""

    def moving(self) -> None:
        """Nothing."""

    def primed(self, number: int) -> None:
        """Nothing."""

    def ended(self, error: AntiphonError) -> None:
        """Nothing: the guest closes by itself."""

    def tell(self) -> None:
        """Nothing."""
