"""The bundled paged engine: token ids in, token ids out."""
