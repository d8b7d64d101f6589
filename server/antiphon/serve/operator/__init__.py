"""Serves operators: health, metrics, traces and the free-rows port."""
