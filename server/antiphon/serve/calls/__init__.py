"""Calls: one class for the life of all of them, and what a call has: a dialect and a participant."""
