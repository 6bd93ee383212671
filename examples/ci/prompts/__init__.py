"""Prompt builders of an agent: from the messages so far to the body of the next request."""
