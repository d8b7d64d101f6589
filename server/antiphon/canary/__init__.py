"""A canary: some new calls go to the next version of a model, and both versions are compared call by call.

It has no I/O: signals in, a phase out. ``serve`` measures calls and routes them by the phase; the supervisor,
if there is one, keeps the trial of all front ends.
"""
