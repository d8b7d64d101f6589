"""What to run on a machine: the published models, and which of them fit."""
