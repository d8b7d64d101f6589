"""The media of calls: audio lines, voices and recordings."""
