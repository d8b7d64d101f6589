"""A canary: some new calls go to the next version of a model, and both versions are compared call by call.

Pure: signals in, a phase out. ``serve`` measures calls and obeys the phase; the supervisor, where there is
one, keeps the trial of all front ends.
"""
