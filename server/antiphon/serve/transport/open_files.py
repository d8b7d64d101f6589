"""The limit of open files, of which each connection takes one."""

from __future__ import annotations

import contextlib
import resource

MAX_OPEN_FILES = 65_536
"""What the soft limit is raised to at most: thousands of calls and their recordings need far fewer."""


def open_file_limit() -> int:
    """How many files this process may have open now."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_open_file_limit() -> int:
    """Raise the soft limit towards the hard one, to at most ``MAX_OPEN_FILES``; returns what holds now.

    Shells and service managers give 1024 for the sake of programs that use ``select``; this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_file_limit()
