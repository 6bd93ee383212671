"""How the example sessions are recorded: the tools, the loop, and the plans."""
