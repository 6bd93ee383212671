"""One module per recorder: how its files are told apart and how they are read."""
