"""The encoder and what sits on it: Flax modules behind plain functions of (config, params, arrays)."""
