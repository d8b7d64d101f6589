"""Access: keys, limits of callers, origins, and secrets between workers."""
