"""Checks the keys, limits and origins of callers, and the signatures of other workers."""
