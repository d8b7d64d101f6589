"""The recipe that makes the default models from speech synthesisers and seeds only."""
