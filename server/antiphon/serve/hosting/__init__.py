"""The parts of a server: engines, services and conversations, their start and end."""
