"""One module per way in which a log holds requests: bare or wrapped bodies, HAR, LiteLLM, OpenTelemetry, our own."""
