"""Every tokenizer that is built out of a GGUF gives the ids of llama-server's ``/tokenize``, on the corpus and on hard texts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest

from agentctx.rendering.load import load_tokenizer
from agentctx.rendering.pretokenizers import PRE_TOKENIZERS
from agentctx.rendering.tokenizer import Tokenizer

from . import tiny_gguf, vocabularies
from .chat_models import CHAT_MODELS
from .conftest import ChatModelFile, StartServer
from .corpus_texts import HARD, corpus_share, random_texts
from .llama_server import LlamaServer

pytestmark = pytest.mark.real

MODELS = ("SmolLM2", "Gemma 3", *CHAT_MODELS)
SHARE = int(os.environ.get("AGENTCTX_TOKENIZE_BYTES", 2_200_000)) // len(MODELS)


@pytest.mark.corpus
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MODELS)
def test_real_vocabularies_on_the_corpus(
    name: str, chat_model: ChatModelFile, start_server: StartServer, shared_dir: Path
) -> None:
    """The corpus is split over the models: 2.2 MB in all, more by ``AGENTCTX_TOKENIZE_BYTES``."""
    path = chat_model(name)
    tokenizer, server = load_tokenizer(str(path)), start_server(path, n_ctx=256, n_parallel=1)
    texts = corpus_share(shared_dir, MODELS.index(name), len(MODELS), SHARE)
    assert sum(len(text.encode(errors="replace")) for text in texts) >= SHARE * 0.95
    assert_same_ids(server, tokenizer, (*texts, *HARD, *random_texts(30, seed=MODELS.index(name))))


_NAMES = [
    name for name in PRE_TOKENIZERS if name != "gemma4"
]  # the name of a model, which is among those above
_KINDS = {cut: name for name, cut in reversed(PRE_TOKENIZERS.items())}


@pytest.mark.parametrize("name", _NAMES)
def test_every_pre_tokenizer_name(name: str, tmp_path: Path, start_server: StartServer) -> None:
    """Names that stand for one and the same cut are tried with fewer texts after the first."""
    vocabulary = vocabularies.embedded(name, 6_000).with_special(
        ("<|im_start|>", "<|im_end|>"), "<s>", "</s>"
    )
    path = tiny_gguf.write_full_attention(
        tmp_path / "model.gguf", n_ctx=512, vocabulary=vocabulary.without_switches()
    )
    tokenizer, server = load_tokenizer(str(path)), start_server(path, n_ctx=256, n_parallel=1)
    count = 150 if _KINDS[PRE_TOKENIZERS[name]] == name else 15
    assert_same_ids(server, tokenizer, (*HARD, *random_texts(count, seed=7)))


@pytest.mark.parametrize("name", ["SmolLM2", "Gemma 3"])
def test_a_lone_surrogate_is_what_the_server_would_read(
    name: str, chat_model: ChatModelFile, start_server: StartServer
) -> None:
    """UTF-8 can't carry one: no request can bring it to a server, so it is U+FFFD before anything counts it."""
    path = chat_model(name)
    tokenizer, server = load_tokenizer(str(path)), start_server(path, n_ctx=256, n_parallel=1)
    broken = "before \ud83d after \udc00\udc00 end"
    read = broken.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert read.count("\ufffd") == 3
    assert tokenizer.encode(broken).tolist() == ids_of(server, read)
    as_json = httpx.post(f"{server.url}/tokenize", content=json.dumps({"content": broken}))
    assert as_json.status_code >= 400
    assert "surrogate" in as_json.text


def assert_same_ids(server: LlamaServer, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """With special tokens read and not, and the token in front that the server adds."""
    for text in texts:
        ours = tokenizer.encode(text).tolist()
        theirs = ids_of(server, text)
        assert ours == theirs, _first_difference(tokenizer, text, ours, theirs)
    for text in HARD:
        plain = ids_of(server, text, parse_special=False)
        assert tokenizer.encode_ordinary(text).tolist() == plain, text
        added = ids_of(server, text, add_special=True)
        assert getattr(tokenizer, "add_bos", None) is (len(added) > len(ids_of(server, text))), text


def ids_of(
    server: LlamaServer, text: str, *, add_special: bool = False, parse_special: bool = True
) -> list[int]:
    body = {"content": text, "add_special": add_special, "parse_special": parse_special}
    ids: list[int] = server.post("/tokenize", body)["tokens"]
    return ids


def _first_difference(tokenizer: Tokenizer, text: str, ours: list[int], theirs: list[int]) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    place = tokenizer.encode_placed(text)[1][at] if at < len(ours) else len(text)
    return f"{ours[at : at + 6]} for the server's {theirs[at : at + 6]} at {text[max(0, place - 10) : place + 20]!r}"
