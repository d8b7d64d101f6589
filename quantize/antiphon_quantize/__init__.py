"""Tools for checkpoints: quantization and its quality gate, benchmarks, and advice on models."""
