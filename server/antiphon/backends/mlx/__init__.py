"""Moshi-family models on mlx, for Apple silicon: our own modules over explicit state, S rows at once."""
