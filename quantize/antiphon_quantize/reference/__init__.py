"""Upstream's ``moshi`` package, unchanged, behind the backend interface: the oracle and the baseline."""
