"""Decoder layers and checkpoint loading."""
