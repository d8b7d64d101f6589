"""What operators see: health, metrics, traces, the free-rows port."""
