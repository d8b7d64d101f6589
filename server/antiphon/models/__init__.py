"""The description of a checkpoint: spec, files, tokenizer, delays, sampling parameters."""
