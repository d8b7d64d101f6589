"""Upstream's ``moshi`` package, unchanged, behind the backend interface: the reference and the baseline."""
