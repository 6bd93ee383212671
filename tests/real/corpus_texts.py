"""Texts to tokenize: what stands in the shared corpus, what is known to be hard, and what chance brings."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

HARD = (
    "",
    " ",
    "\n",
    "🙂 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ☺️☺ 1️⃣ text🙂text 🙂🙂🙂  🙂",
    "日本語の文章です。中文，没有空格；한국어 문장입니다. ไทยไม่มีช่องว่าง हिन्दी में लिखा",
    "\ttab\t\tin\t the\tmiddle \t end\t",
    "line\r\nline\r\n\r\n  indented\r\n\rlone\r",
    "3141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825 7 42 1e-9",
    "1,234,567.89 0x7fff_ffff 2026-11-30T07:29:59Z ٣٤٥ ½ Ⅷ ４２ १२३",
    "don't DON'T we'll WE'LL I'd 'S 'm ’s it's'nt 're'VE",
    "e\u0301 o\u0308 \u0301 a\u20dd \u1100\u1161\u11a8 \u00c5\u212b\u2126\u212a \ufb01 ǅ ſ's",
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u1680h\u205fi \u202f\u1680 \u3000",
    "\x00\x01\x1c\x1d\x1e\x1f\x7f\x80\x9f\u200b\u200d\ufeff\u2060",
    "\ue000\uf8ff \ufdd0 \uffff \U0010ffff \U000e0080 \u0378",
    "    if x:\n        return {'a': [1, 2, 3]}  # TODO: fix\n\n\n\n    else:\n\t\tpass\n",
    "https://example.com/a/b?c=d&e=%20f#g user@example.com C:\\Users\\me\\x.py ../../etc/passwd",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "=========================== ------- ******** ........ !!!???!!! ((())) [[[]]] {{{}}} ~~~ ``` ''' \"\"\"",
    " leading, trailing ",
    "camelCaseWithHTTPServer snake_case SCREAMING_CASE kebab-case ЁлкаИЁлка ΑΒγδ",
    "▁ ▁▁ a▁b <0x0A> <unk> <s> </s> <|endoftext|> <|im_start|>user<|im_end|> [INST] <bos><eos> <start_of_turn>",
)
_PIECES = (
    *(
        "abcXYZ",
        "éßñÅøſ",
        "0123456789",
        "٣٤५Ⅷ½",
        "  ",
        "\t\n\r\v\f",
        "\n\n",
        ".,;:!?()[]{}\"'`~@#$%^&*-_=+/\\|<>",
    ),
    *(
        "…。，、।۔،「」“”",
        "한국어가",
        "日本語中文漢字",
        "ぁひらカナー",
        "\u1100\u1161\u11a8",
        "\u0301\u0302\u0308\u20dd",
    ),
    *(
        "🙂👍🏽👨\u200d👩🇩🇪",
        "\x00\x01\x1c\x1f\x7f\x80\x85\x9f",
        "\xa0\u1680\u2003\u2028\u202f\u205f\u3000",
        "\u200b\ufeff\ufffd",
    ),
    *(
        "אבגعربى",
        "\ue000\uf8ff",
        "\u0378\u05ff\ufdd0\uffff\U0010ffff",
        "𝒜𝟘𐐀𐑏𞤀",
        "เก็บน้ำ",
        "हिन्दी",
        "ǅǈªº",
        "€£¥₿←→∑",
        "ᎠᏸᲐ",
    ),
)
_ENDINGS = ("'s", "'t", "'re", "'VE", "'m", "'LL", "'d", "'S", "’s")


@cache
def corpus_strings(shared: Path) -> tuple[str, ...]:
    """Every distinct text in the sessions and request bodies, in an order that mixes them."""
    found: set[str] = set()
    for path in sorted((*(shared / "corpus/traces").rglob("*"), *(shared / "corpus/requests").rglob("*"))):
        if (
            path.suffix in (".json", ".jsonl", ".traj")
            and "mooncake" not in path.name
            and "kvtrace" not in path.name
        ):
            text = path.read_text()
            for document in text.splitlines() if path.suffix == ".jsonl" else (text,):
                if document.strip():
                    found.update(_strings(json.loads(document)))
    templates = [path.read_text() for path in (shared / "corpus/templates").glob("*.jinja")]
    ordered = sorted({*found, *templates})
    random.Random(1).shuffle(ordered)
    return tuple(ordered)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def corpus_share(shared: Path, number: int, of: int, size: int) -> list[str]:
    """Part ``number`` of ``of``: about ``size`` bytes. Short texts are sent together, a line each; long ones are cut to 16,000 characters."""
    out: list[str] = []
    short: list[str] = []
    total = 0
    for text in corpus_strings(shared)[number::of]:
        if total >= size:
            break
        total += len(text[:16_000].encode(errors="replace"))
        if len(text) >= 500:
            out.append(text[:16_000])
            continue
        short.append(text)
        if sum(map(len, short)) > 4_000:
            out.append("\n".join(short))
            short = []
    return [*out, "\n".join(short)]


def random_texts(count: int, seed: int, length: int = 300) -> list[str]:
    """Texts of many scripts, blanks and signs in any order, and some of code points at random.

    Code points that came to Unicode after the version that Python knows are left out: the tables of servers differ there.
    """
    chance = random.Random(seed)
    return [_mixed(chance, length) if index % 3 else _any(chance, length) for index in range(count)]


def _mixed(chance: random.Random, length: int) -> str:
    out: list[str] = []
    while sum(map(len, out)) < length:
        letters = chance.choice(_PIECES)
        out.append("".join(chance.choice(letters) for _ in range(chance.choice((1, 1, 1, 2, 3, 7)))))
        if chance.random() < 0.3:
            out.append(chance.choice((" ", "  ", "\n", " \n", "\n ", *_ENDINGS)))
    return "".join(out)


def _any(chance: random.Random, length: int) -> str:
    ranges = ((0x20, 0x80), (0x80, 0x3000), (0x3000, 0x10000), (0x1F000, 0x1FB00), (0x10000, 0x110000))
    made = (chr(chance.randrange(*chance.choice(ranges))) for _ in range(length))
    return "".join(letter for letter in made if unicodedata.category(letter) not in ("Cn", "Cs"))
