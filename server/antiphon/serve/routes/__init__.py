"""The paths: the handler of each, in the form of its protocol."""
