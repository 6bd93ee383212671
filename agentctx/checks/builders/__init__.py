"""Checking a prompt builder: a user's own code, run over turns in fresh processes that differ in what must not matter."""
