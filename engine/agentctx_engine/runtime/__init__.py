"""Requests, scheduler, model runner, sampler and the Engine facade."""
