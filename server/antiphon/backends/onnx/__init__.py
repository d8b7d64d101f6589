"""The onnx backend: exported graphs on ONNX Runtime, with explicit state. It needs no torch."""
