"""The paths: what each answers, in the form of its protocol."""
