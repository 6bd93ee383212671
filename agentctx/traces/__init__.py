"""Traces: recorded conversations in, one format of ours out."""
