"""A voice agent without its speech models: turns, history, the text model's client, and the text that is
spoken."""
