"""Memory manager: which block holds what, and what may be reused. No torch."""
