"""Policies: a History in, the Request of this turn out."""
