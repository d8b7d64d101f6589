"""Model recommendations: the published models, and which of them fit a machine."""
