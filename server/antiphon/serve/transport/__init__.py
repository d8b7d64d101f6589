"""Sockets: messages in, frames out; every wait has a time limit."""
