"""Dialects: the messages of each protocol to actions, and replies to messages. No I/O."""
