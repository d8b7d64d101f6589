"""Measuring a model as it is installed here: the benchmark card, the search for slots, and the proof."""
