"""One target under atheris, in a process of its own: libFuzzer ends the process when it is done.

python -m lab.tools.fuzz.guided TARGET FOLDER [OPTIONS OF LIBFUZZER]
"""

from __future__ import annotations

import logging
import os
import sys

import atheris


def main() -> None:
    """Fuzz until libFuzzer has had enough."""
    logging.disable()
    os.environ["HF_HUB_OFFLINE"] = "1"  # an input may name a repository
    with atheris.instrument_imports(include=["antiphon", "tomllib", "yaml"]):
        from lab.tools.fuzz.target import try_input
        from lab.tools.fuzz.targets import TARGETS
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    atheris.Setup(
        [sys.argv[0], f"-max_len={target.max_bytes}", *options], lambda data: try_input(target, data) and None
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
