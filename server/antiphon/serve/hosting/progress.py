"""Progress of a model's warm-up."""

from __future__ import annotations

import sys

from antiphon.backends.base import Progress
from antiphon.log import ERASE, Log


def show_progress(is_terminal: bool) -> Progress:
    """Tells how far the warm-up is: in a terminal on one line, which is gone at the end, else in the log."""
    log = Log()

    def show(done: int, total: int, what: str) -> None:
        if is_terminal:
            sys.stderr.write(ERASE + ("" if done == total else f"{what} {done}/{total}"))
            sys.stderr.flush()
        elif done == total:
            log.info("warm", what=what, total=total)

    return show
