"""Reports: what a turn and a session cost, and how that is shown."""
