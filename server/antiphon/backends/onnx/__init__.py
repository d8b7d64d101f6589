"""The onnx backend: exported graphs on ONNX Runtime, with their state in the open. It needs no torch."""
