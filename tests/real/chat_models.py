"""Small models with the templates and vocabularies of real ones: only their weights are random.

Where a model's own vocabulary is in no package, another real one stands behind its pre-tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentctx.rendering.sources import token_like
from tests.rendering.corpus_templates import special_tokens

from . import tiny_gguf, vocabularies
from .vocabularies import Vocabulary


@dataclass(frozen=True)
class ChatModel:
    """``template``: name in the corpus. ``vocabulary``: made from Gemma 3's GGUF, for those that need it. ``bos``: where the corpus has none."""

    template: str
    vocabulary: Callable[[Path], Vocabulary]
    add_bos: bool = False
    bos: str | None = None

    def write(self, path: Path, shared: Path, gemma: Path) -> Path:
        """The GGUF, with the tokens that the template names as special ones."""
        folder = shared / "corpus/templates"
        text = (folder / f"{self.template}.jinja").read_text()
        special = special_tokens(folder)[self.template]
        bos, eos = self.bos or special["bos_token"] or None, special["eos_token"]
        made = self.vocabulary(gemma).with_special(token_like(text), bos, eos)
        made = made.switched(add_bos_token=self.add_bos)
        return tiny_gguf.write_full_attention(path, n_ctx=512, vocabulary=made, template=text)


_SOME = 50_000
CHAT_MODELS = {
    "Qwen 3": ChatModel("Qwen-Qwen3-0.6B", lambda _: vocabularies.qwen2()),
    "Qwen 3.5": ChatModel("Qwen3.5-4B", lambda _: vocabularies.qwen35()),
    "DeepSeek V3.1": ChatModel("deepseek-ai-DeepSeek-V3.1", lambda _: vocabularies.deepseek(), True),
    "Phi 4": ChatModel("phi-4", lambda _: vocabularies.cl100k("dbrx")),
    "Llama 3.2": ChatModel(
        "meta-llama-Llama-3.2-3B-Instruct", lambda _: vocabularies.cl100k("llama-bpe", _SOME), True
    ),
    "gpt-oss": ChatModel("openai-gpt-oss-120b", lambda _: vocabularies.cl100k("gpt-4o", _SOME)),
    "Mistral Nemo": ChatModel(
        "mistralai-Mistral-Nemo-Instruct-2407", lambda _: vocabularies.cl100k("tekken", _SOME), True
    ),
    "GLM 4.6": ChatModel("GLM-4.6", lambda _: vocabularies.embedded("glm4")),
    "Granite 4": ChatModel("ibm-granite-granite-4.0", lambda _: vocabularies.embedded("refact")),
    "Mistral 7B": ChatModel(
        "mistral-instruct-v0.3",
        lambda gemma: vocabularies.sentence_pieces(gemma, add_space_prefix=True),
        True,
    ),
    "Gemma 4": ChatModel("google-gemma-4-31B-it", vocabularies.gemma4, True),
    "LFM2": ChatModel("LFM2-8B-A1B", lambda _: vocabularies.embedded("lfm2"), True, "<|startoftext|>"),
}
