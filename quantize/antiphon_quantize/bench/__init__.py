"""Measurements of an installed model: the benchmark card, the search for slots, and the verification."""
