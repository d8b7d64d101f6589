"""An interpreter with few of the installed packages, as on a fresh machine: every other import fails."""

from __future__ import annotations

import os
from pathlib import Path

ALLOWED = ("torch", "triton", "numpy", "safetensors", "msgspec", "prometheus_client")
BROUGHT = ("typing_extensions", "sympy", "mpmath", "jinja2", "markupsafe", "networkx", "filelock", "fsspec")
"""Packages in torch's own wheels."""

SOURCE = """
import sys
from importlib.machinery import ModuleSpec, PathFinder


class OnlyThese(PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path=None, target=None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        name = fullname.partition(".")[0]
        if spec is None or name in {allowed!r} or name.startswith(("_", "torchgen", "functorch")):
            return spec
        at = spec.origin or str(list(spec.submodule_search_locations or [""])[0])
        return None if "site-packages" in at else spec


sys.meta_path[:] = [OnlyThese if finder is PathFinder else finder for finder in sys.meta_path]
"""


def bare_environment(folder: Path) -> dict[str, str]:
    """Variables with which a new Python has only these packages."""
    (folder / "sitecustomize.py").write_text(SOURCE.format(allowed=(*ALLOWED, *BROUGHT)))
    return os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
