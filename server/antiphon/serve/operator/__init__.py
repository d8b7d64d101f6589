"""For operators: health, metrics, traces, the free-rows port."""
