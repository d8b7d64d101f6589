"""Starts and ends the parts of a server: engines, services and conversations."""
