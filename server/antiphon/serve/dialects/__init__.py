"""Converts the messages of each protocol to actions, and replies to messages, without I/O."""
