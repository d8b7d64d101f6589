"""The first process: it listens, distributes connections, and keeps the engine and the front ends running."""
