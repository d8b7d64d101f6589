"""The recipe that makes the default models from a speech synthesiser and seeds only."""
