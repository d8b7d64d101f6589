"""Ring buffer, Opus, Ogg, PCM, files."""
