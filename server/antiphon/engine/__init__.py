"""Sessions, rows, the scheduler and the one engine thread."""
