"""The engine: it owns sessions and rows, and runs ticks on the engine thread."""
