"""The modules of our models: layers, the codec, the language model."""
