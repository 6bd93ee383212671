"""Docstrings name things with Sphinx roles; the documentation shows the names (an extension of griffe)."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|attr|mod|exc|data):`~?([^`]+)`")


class DocstringRoles(griffe.Extension):
    """Turns ``:class:`X``` and double backticks into Markdown's single ones."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value).replace("``", "`")
