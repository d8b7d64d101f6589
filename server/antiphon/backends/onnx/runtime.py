"""ONNX Runtime with its telemetry off: the one place that imports it.

From release 1.29 on the library sends usage data unless the environment forbids it when it is loaded.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime

__all__ = ["onnxruntime"]
