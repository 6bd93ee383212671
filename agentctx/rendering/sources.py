"""Where chat templates and tokenizers come from: files of a checkpoint, a GGUF, a running server's properties."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from agentctx.errors import InputError, UsageError
from agentctx.rendering.gguf_metadata import read_gguf_metadata
from agentctx.rendering.gguf_tokenizer import gguf_tokenizer
from agentctx.rendering.huggingface import load_tokenizer_json
from agentctx.rendering.model_tokenizer import ModelTokenizer
from agentctx.rendering.tokenizer import Tokenizer

DEFAULT, WITH_TOOLS = "default", "tool_use"
_MOST_TEMPLATE_BYTES = 4_000_000
_MOST_CONFIG_BYTES = 100_000_000
_NO_TEMPLATE = "give a template file as well, or use a layout such as chatml"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a file, a folder or a server says about a model's prompts.

    ``templates``: chat templates by name; ``default`` is always there, ``tool_use`` is taken when a request has tools. ``variables``: special
    tokens that templates may name. ``tokenizer``: the model's own, or ``None`` when the source has none. ``add_bos``: the server puts
    ``bos`` in front of every prompt. ``llama_cpp``: rendered and completed by llama.cpp's rules instead of transformers'.
    """

    name: str
    templates: Mapping[str, str]
    variables: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    bos: str = ""
    add_bos: bool = False
    llama_cpp: bool = False

    def template(self, name: str) -> str:
        """One of the templates. Raises ``UsageError`` for a name that isn't there."""
        if name not in self.templates:
            known = ", ".join(sorted(self.templates))
            raise UsageError(f"{self.name} has no chat template {name!r}; it has: {known}")
        return self.templates[name]

    def keywords_at(self, now: datetime) -> dict[str, Any]:
        """What the server hands to every template beside the conversation."""
        if not self.llama_cpp:
            return {}
        return {
            "enable_thinking": True,
            "date_string": now.strftime("%d %b %Y"),
            "datetime": now.strftime("%b %d %Y"),
        }


def read_source(path: Path) -> ModelSource:
    """Read a ``.jinja`` file, a GGUF, a ``tokenizer_config.json``, a ``chat_template.json``, saved ``/props``, or a checkpoint's folder.

    Raises ``InputError`` that names the file and what is missing.
    """
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.suffix in (".jinja", ".jinja2", ".j2"):
        return ModelSource(path.stem, {DEFAULT: _text(path)})
    if path.suffix == ".json":
        data = _json(path)
        if "chat_template" not in data:
            raise InputError(
                "it has no chat template", file=str(path), field="chat_template", remedy=_NO_TEMPLATE
            )
        if "default_generation_settings" in data:
            return props_source(data, name=path.stem)
        beside = _folder(path.parent) if path.name == "tokenizer_config.json" else None
        return ModelSource(
            path.parent.name or path.stem,
            beside.templates if beside else _named(data["chat_template"], path),
            _variables(data),
            beside.tokenizer if beside else None,
        )
    raise InputError("not a template, a GGUF, a JSON file or a folder", file=str(path))


def props_source(
    props: Mapping[str, Any], *, name: str = "llama-server", tokenizer: Tokenizer | None = None
) -> ModelSource:
    """From a running llama-server's ``/props``, given as parsed JSON. The server's tokenizer is passed in (``RemoteTokenizer``)."""
    template = props.get("chat_template")
    if not isinstance(template, str) or not template:
        raise InputError(
            "the server has no chat template", file=name, field="chat_template", remedy=_NO_TEMPLATE
        )
    templates = {DEFAULT: template}
    if isinstance(props.get("chat_template_tool_use"), str):
        templates[WITH_TOOLS] = props["chat_template_tool_use"]
    bos, eos = str(props.get("bos_token") or ""), str(props.get("eos_token") or "")
    # /props doesn't tell whether the server adds the token; where the template doesn't write it, it shows in /tokenize only.
    return ModelSource(name, templates, {"bos_token": bos, "eos_token": eos}, tokenizer, bos, False, True)


def _gguf(path: Path) -> ModelSource:
    metadata = read_gguf_metadata(path)
    tokenizer: ModelTokenizer = gguf_tokenizer(metadata, str(path))
    templates: dict[str, str] = {}
    prefix = "tokenizer.chat_template"
    for key, value in metadata.items():
        if key == prefix and isinstance(value, str):
            templates[DEFAULT] = value
        elif key.startswith(prefix + ".") and isinstance(value, str):
            templates[key[len(prefix) + 1 :]] = value
    if DEFAULT not in templates:
        raise InputError("it has no chat template", file=str(path), field=prefix, remedy=_NO_TEMPLATE)
    variables = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    return ModelSource(path.stem, templates, variables, tokenizer, tokenizer.bos, tokenizer.add_bos, True)


def _folder(path: Path) -> ModelSource:
    """A checkpoint: newer files go before older places, as transformers reads them."""
    config_file, plain, old = (
        path / n for n in ("tokenizer_config.json", "chat_template.jinja", "chat_template.json")
    )
    config = _json(config_file) if config_file.is_file() else {}
    templates: dict[str, str] = {}
    if config.get("chat_template"):
        templates |= _named(config["chat_template"], config_file)
    if old.is_file():
        templates |= _named(_json(old).get("chat_template"), old)
    if plain.is_file():
        templates[DEFAULT] = _text(plain)
    for more in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[more.stem] = _text(more)
    if DEFAULT not in templates:
        raise InputError(
            "no chat template in chat_template.jinja, chat_template.json or tokenizer_config.json",
            file=str(path),
            remedy=_NO_TEMPLATE,
        )
    variables = _variables(config)
    special_file = path / "special_tokens_map.json"
    if special_file.is_file():
        variables = {**_variables(_json(special_file)), **variables}
    tokenizer_file = path / "tokenizer.json"
    tokenizer = load_tokenizer_json(tokenizer_file) if tokenizer_file.is_file() else None
    return ModelSource(path.name, templates, variables, tokenizer)


def _named(value: Any, path: Path) -> dict[str, str]:
    """Templates of a config: one text, or a list of ``{"name": …, "template": …}``."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list):
        found = {
            item["name"]: item["template"]
            for item in value
            if isinstance(item, dict)
            and isinstance(item.get("name"), str)
            and isinstance(item.get("template"), str)
        }
        if found:
            found.setdefault(DEFAULT, next(iter(found.values())))
            return found
    raise InputError("neither a text nor a list of named templates", file=str(path), field="chat_template")


def _variables(config: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens by their name in the config, as transformers hands them to the template."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            found[key] = text
    return found


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_TEMPLATE_BYTES:
            raise InputError(f"larger than {_MOST_TEMPLATE_BYTES} bytes", file=str(path))
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't be read: {error}", file=str(path)) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_CONFIG_BYTES:
            raise InputError(f"larger than {_MOST_CONFIG_BYTES} bytes", file=str(path))
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"can't be read as JSON: {error}", file=str(path)) from error
    if not isinstance(data, dict):
        raise InputError("not a JSON object", file=str(path))
    return data


_TOKEN_LIKE = re.compile(r"<[|｜/]?[A-Za-z][\w:▁ -]{0,40}[|｜]?>|\[/?[A-Z][A-Z_]{1,30}\]")


def token_like(template: str) -> list[str]:
    """Texts in a template that look like special tokens: what a stand-in tokenizer should count as one token each."""
    return sorted(set(_TOKEN_LIKE.findall(template)))
