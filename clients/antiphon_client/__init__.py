"""Clients of an Antiphon server: the probe and the terminal call."""
