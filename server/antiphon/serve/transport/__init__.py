"""Sockets: messages in, frames out; every wait is bounded."""
