"""The onnx backend: exported graphs on ONNX Runtime, with explicit state. It does not need torch."""
