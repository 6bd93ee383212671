"""Cache models: what a given server would reuse."""
