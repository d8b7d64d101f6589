"""Sockets: messages in, frames out, and every wait bounded."""
