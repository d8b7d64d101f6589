"""The parts of a server: engines, services and conversations, their begin and end."""
