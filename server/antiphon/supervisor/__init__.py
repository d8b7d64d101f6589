"""The first process: it listens, passes connections on, and keeps the engine and the front ends running."""
