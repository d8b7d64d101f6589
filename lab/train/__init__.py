"""The recipe that makes the default models from only a speech synthesiser and seeds."""
