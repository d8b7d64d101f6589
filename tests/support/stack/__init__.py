"""The stack of compose.yaml as processes on loopback: for tests, benchmarks, and where there is no engine."""
