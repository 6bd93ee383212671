"""The commands of ``agentctx``, a module each: options in, library calls, exit codes out. No logic of their own."""
