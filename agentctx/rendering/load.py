"""Find a renderer by its name."""

from __future__ import annotations

from agentctx.errors import UsageError
from agentctx.rendering.chatml import SPECIALS, ChatMLRenderer
from agentctx.rendering.prompt import Renderer
from agentctx.rendering.tokenizer import TiktokenTokenizer, tiktoken_tokenizer


def with_layout_tokens(tokenizer: TiktokenTokenizer) -> TiktokenTokenizer:
    """The tokenizer with the built-in layout's special tokens added behind its own ids."""
    import tiktoken

    base = tokenizer.encoding
    lacking = [text for text in SPECIALS if text not in tokenizer.special_tokens]
    encoding = tiktoken.Encoding(
        name=f"{base.name}+chatml",
        pat_str=base._pat_str,
        mergeable_ranks=base._mergeable_ranks,
        special_tokens={**base._special_tokens, **{text: base.n_vocab + i for i, text in enumerate(lacking)}},
    )
    return TiktokenTokenizer(encoding, exact=False)


def load_renderer(name: str) -> Renderer:
    """The renderer of that name.

    ``chatml``: the built-in layout with the embedded vocabulary (no file, no network).
    ``chatml:ENCODING``: the built-in layout with one of tiktoken's encodings, if tiktoken has it.

    Raises ``UsageError`` for a name that is none of these.
    """
    layout, _, encoding = name.partition(":")
    if layout == "chatml":
        if not encoding:
            return ChatMLRenderer()
        return ChatMLRenderer(with_layout_tokens(tiktoken_tokenizer(encoding)), name=name)
    raise UsageError(f"unknown renderer {name!r}; known: chatml, chatml:<tiktoken encoding>")
