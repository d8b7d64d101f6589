"""What a checkpoint is: spec, files, tokenizer, delays, sampling parameters."""
