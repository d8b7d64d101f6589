"""Backends: implementations that run a model, behind one small interface."""
