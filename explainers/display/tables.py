"""Rows of values as HTML tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from explainers.display.encoding import escape


def table_html(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table; columns of text are aligned left, numbers right, and missing values are empty."""
    is_text = [any(isinstance(row[k], str) for row in rows) for k in range(len(heads))]
    head = "".join(_cell("th", name, left) for name, left in zip(heads, is_text, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', value, left) for value, left in zip(row, is_text, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(tag: str, value: Any, left: bool) -> str:
    kind = ' class="saliscope-text"' if left else ""
    return f"<{tag}{kind}>{escape(_text(value))}</{tag}>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return "not measured" if math.isnan(value) else f"{value:.4g}"


def findings_html(sentences: Iterable[str]) -> str:
    """Return findings as paragraphs with a mark."""
    return "".join(f'<p class="saliscope-finding">{escape(each)}</p>' for each in sentences)


def folded(title: str, content: str) -> str:
    """Return content that a click on the title shows."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def paragraphs(lines: Sequence[str]) -> str:
    """Return lines of text as paragraphs."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
