"""The handlers of the server's paths, each in the form of its protocol."""
