"""Formulas as MathML, made while the site is built: no script, no font and no picture is loaded to show one.

docutils' own translator does it. Browsers have drawn MathML since 2023.
"""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

log = logging.getLogger(__name__)
SYNONYMS = {r"\dots": r"\ldots"}


def formula(node: nodes.Element, block: bool) -> str:
    """One formula; an apostrophe is a prime."""
    source = node.astext()
    for written, known in SYNONYMS.items():
        source = source.replace(written, known)
    source = re.sub(r"\\tag\{(.*?)\}", r"\\qquad(\1)", source)
    try:
        made = latex2mathml.tex2mathml(source, as_block=block)
    except MathError as error:
        log.warning("formula %r: %s", source, error, location=node)
        return source
    return made.replace("<mo>'</mo>", '<mo lspace="0" rspace="0">′</mo>')


def inline(translator: Any, node: nodes.math) -> None:
    """A formula in a sentence."""
    translator.body.append(formula(node, block=False))
    raise nodes.SkipNode


def display(translator: Any, node: nodes.math_block) -> None:
    """A formula on a line of its own, which scrolls by itself where the screen is narrow."""
    translator.body.append(f'<div class="formula" tabindex="0">{formula(node, block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
