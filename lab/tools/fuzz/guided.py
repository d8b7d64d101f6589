"""Fuzzes one target with atheris in a separate process, since libFuzzer ends the process when it is done.

python -m lab.tools.fuzz.guided MODULE TARGET [OPTIONS OF LIBFUZZER] FOLDER
"""

from __future__ import annotations

import importlib
import logging
import os
import sys

import atheris


def main() -> None:
    """Fuzz until libFuzzer ends."""
    module, name, *options = sys.argv[1:]
    logging.disable()
    os.environ["HF_HUB_OFFLINE"] = "1"  # an input may name a repository
    with atheris.instrument_imports(include=["antiphon", "tomllib", "yaml"]):
        from lab.tools.fuzz.target import try_input

        target = importlib.import_module(module).TARGETS[name]
    atheris.Setup(
        [sys.argv[0], f"-max_len={target.max_bytes}", *options],
        lambda data: try_input(target, data) and None,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
