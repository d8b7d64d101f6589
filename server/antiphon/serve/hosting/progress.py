"""Progress of a model's warm-up."""

from __future__ import annotations

import sys

from antiphon.backends.base import Progress
from antiphon.log import Log


def show_progress(is_terminal: bool) -> Progress:
    """Tells how far the warm-up is: on one line in a terminal, else in the log."""
    log = Log()

    def show(done: int, total: int, what: str) -> None:
        if is_terminal:
            sys.stderr.write(f"\r\x1b[K{what} {done}/{total}" + ("\n" if done == total else ""))
            sys.stderr.flush()
        elif done == total:
            log.info("warm", what=what, total=total)

    return show
