"""The published weights of Antiphon's built-in models, for backends that do not run ONNX graphs."""
