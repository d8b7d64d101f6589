"""The recipe that makes the default models from nothing but a speech synthesiser and seeds."""
