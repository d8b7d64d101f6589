"""The stack of compose.yaml as processes on loopback, for tests, benchmarks, and machines without Docker."""
