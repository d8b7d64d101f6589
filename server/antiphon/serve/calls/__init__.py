"""Calls: one class for the life of every call, and its parts: a dialect and a participant."""
