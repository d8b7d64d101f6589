"""The things that run a model, behind one small interface."""
