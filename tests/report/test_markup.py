"""Text stays text in HTML."""

from html.parser import HTMLParser

import pytest

from splitbit_kit.report.markup import document, node, plain


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.attributes = [], [], {}

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.update(attrs)

    def handle_data(self, data):
        self.texts.append(data)


def read(element):
    reader = Reader()
    reader.feed(document(element).decode("utf-8"))
    reader.close()
    return reader


HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;&#60;"


def test_hostile_text_is_text_wherever_it_stands():
    reader = read(node("p", HOSTILE, node("b", HOSTILE), HOSTILE, title=HOSTILE))
    assert reader.tags == ["p", "b"]
    assert "".join(reader.texts).strip() == HOSTILE * 3
    assert reader.attributes == {"title": HOSTILE}


def test_children_and_attributes():
    made = node("td", "a", None, node("br"), "b", "c", class_="x", aria_label="y", hidden=False)
    assert document(made) == b'<!doctype html>\n<td class="x" aria-label="y">a<br>bc</td>\n'
    assert b"dir-x" in document(node("p", dir_x=True))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain text\n\tindented", "plain text\n\tindented"),
        ("a\x1b[2Jb\x00\x7f", "a␛[2Jb␀␡"),
        ("abc\u202edef\u2066", "abc⟨U+202E⟩def⟨U+2066⟩"),
        ("\ufeffa\u200bb\u00ad", "⟨U+FEFF⟩a⟨U+200B⟩b⟨U+00AD⟩"),
        ("a\r\nb\u2028", "a␍\nb⟨U+2028⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("日本\u3000語 a\u00a0b مرحبا 👩\u200d🔬", "日本\u3000語 a\u00a0b مرحبا 👩\u200d🔬"),
    ],
    ids=ascii,
)
def test_nothing_is_unseen(text, seen):
    assert plain(text) == seen
    assert "".join(read(node("p", text)).texts).strip("\n") == seen.strip("\n")
