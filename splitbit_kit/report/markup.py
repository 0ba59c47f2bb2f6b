"""HTML by elements: what is text stays text, whatever is in it."""

from __future__ import annotations

import unicodedata
from xml.etree.ElementTree import Element, tostring

KEPT = "\n\t\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
"""Not printable, but part of a text: the joiners belong to emoji and to several scripts."""


def node(tag: str, *children: Element | str | None, **attributes: object) -> Element:
    """Return an element. Text children and attribute values are escaped when it is serialised.

    None among the children, and an attribute that is None or False, are left out; True gives an
    attribute without a value. An underscore in an attribute's name stands for a hyphen; one at the
    end is for Python's own words (`class_`).
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None and value is not False:
            made.set(name.rstrip("_").replace("_", "-"), "" if value is True else plain(value))
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif child is not None and len(made):
            made[-1].tail = (made[-1].tail or "") + plain(child)
        elif child is not None:
            made.text = (made.text or "") + plain(child)
    return made


def document(root: Element) -> bytes:
    """Return a whole page in UTF-8."""
    text: str = tostring(root, encoding="unicode", method="html")
    return f"<!doctype html>\n{text}\n".encode()


def plain(value: object) -> str:
    """Return a value as text in which nothing is unseen.

    Control characters, and those that turn the direction of writing, stand as their symbol or
    number: a sample must not rearrange the page, nor hide what it holds.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in KEPT or unicodedata.category(c) == "Zs" else _symbol(c)
        for c in text
    )


def _symbol(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # ␀, ␛ and so on
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"⟨U+{code:04X}⟩"
