"""What operators see: health, metrics, traces, the agent port."""
