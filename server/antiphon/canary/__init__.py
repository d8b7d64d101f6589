"""A canary: some new calls go to the next version of a model, and both versions are compared call by call.

Pure: signals in, a phase out. ``serve`` measures calls and routes them by the phase; the supervisor, if there
is one, keeps the trial of all front ends.
"""
