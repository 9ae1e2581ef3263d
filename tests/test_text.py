import importlib.util
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import InputError
from polyseme.text import Span, split_sentences, tokenizer, unescape

PENN = tokenizer("penn")
ODD = st.text(
    st.one_of(
        st.sampled_from(
            list("aB1 \n\t.,:;!?'\"`-–—…()[]{}<>&#@/=*+~|^\\_%$€°“”’«»\u200d\ufe0f👍🏽👩éßﬁ\u0301\u00ad\u3000。ｎ\ud800\0")
        ),
        st.characters(),
    ),
    max_size=60,
) | st.lists(
    st.sampled_from(["&amp;", "&lt;", "&nbsp;", "&#39;", "&#xD800;", "&NotEqualTilde;", "don't", "www.a.b", "a@b.c", "Mr.", " "])
).map("".join)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I don't think it's the dogs' fault, can't you see?", "I do n't think it 's the dogs ' fault , ca n't you see ?"),
        ("She cannot, won't, and I'd've gone.", "She can not , wo n't , and I 'd 've gone ."),
        ("CANNOT DON'T", "CAN NOT DO N'T"),
        ("“Well,” she said, ‘it’s here.’", "\" Well , \" she said , ' it 's here . '"),
        ("``Quoted,'' said he.", '" Quoted , " said he .'),
        ("Mr. Smith of the U.S. paid $5,000.50 (10%) at 5 p.m.", "Mr. Smith of the U.S. paid $ 5,000.50 ( 10 % ) at 5 p.m."),
        ("J. R. Smith ate an apple. It was No. 5. No.", "J. R. Smith ate an apple . It was No. 5 . No ."),
        ("a well-known state-of-the-art A/C and/or AT&T", "a well-known state-of-the-art A/C and/or AT&T"),
        (
            "He stopped—suddenly -- in 1990–1995 – and... went on…",
            "He stopped -- suddenly -- in 1990-1995 -- and ... went on ...",
        ),
        ("pre- and post-war C++, C#, #1", "pre - and post-war C + + , C # , # 1"),
        ("30 °C, £5, €6, 10x, 4GB, 8:30pm, 1:1", "30 ° C , £ 5 , € 6 , 10x , 4GB , 8:30pm , 1:1"),
        ("O'Brien's o'clock, 'em, the '90s", "O'Brien 's o'clock , ' em , the ' 90s"),
        ("See http://x.org/a_(b)?c=d&e=f. Or www.a.com!", "See http://x.org/a_(b)?c=d&e=f . Or www.a.com !"),
        ("(mail me@a-b.com, <you+x@c.org>)", "( mail me@a-b.com , < you+x@c.org > )"),
        ("What?! No!!! === :) @me b.com/c/d?e=1", "What ?! No !!! === :) @me b.com/c/d?e=1"),
        (
            "AT&amp;T &lt;b&gt; &quot;it&apos;s&quot; &#8212; a&nbsp;b &bogus; &amp",
            'AT&T < b > " it \'s " -- a b & bogus ; & amp',
        ),
        ("U.S.-based, etc.", "U.S. - based , etc."),
        ("naïve Ωmega हिन्दी भाषा 日本語。", "naïve Ωmega हिन्दी भाषा 日本語 。"),
        ("👍🏽 👩\u200d🔬!", "👍🏽 👩\u200d🔬 !"),
        ("snake_case file.txt e.g. this", "snake_case file.txt e.g. this"),
        ("1. First", "1. First"),
        ("", ""),
        (" \n\t", ""),
    ],
)
def test_penn(text, tokens):
    assert PENN.tokenize(text) == tokens.split(" ") if tokens else PENN.tokenize(text) == []


def test_entities_keep_the_places_of_what_was_written():
    text = "AT&amp;T isn&#39;t &lt;here&gt;"
    assert [(token.text, text[token.start : token.end]) for token in PENN.spans(text)] == [
        ("AT&T", "AT&amp;T"),
        ("is", "is"),
        ("n't", "n&#39;t"),
        ("<", "&lt;"),
        ("here", "here"),
        (">", "&gt;"),
    ]


def test_unescape_once():
    assert unescape("plain & simple") == ("plain & simple", None, None)
    clean, starts, ends = unescape("a&amp;lt;b")
    assert clean == "a&lt;b"
    assert (starts, ends) == ([0, 1, 6, 7, 8, 9], [1, 6, 7, 8, 9, 10])


@given(ODD)
def test_no_text_is_lost_and_offsets_are_exact(text):
    tokens = PENN.spans(text)
    covered = set()
    last = 0
    for token in tokens:
        assert token.text
        assert 0 <= token.start < token.end <= len(text)
        assert token.start >= last or "&" in text  # only an entity of two characters may be cut in two
        last = max(last, token.end)
        covered.update(range(token.start, token.end))
        if "&" not in text:
            assert not any(character.isspace() for character in text[token.start : token.end])
    clean, starts, ends = unescape(text)
    places = [(i, i + 1) for i in range(len(text))] if starts is None or ends is None else list(zip(starts, ends, strict=True))
    for character, (start, end) in zip(clean, places, strict=True):
        assert character.isspace() or covered.issuperset(range(start, end))
    assert PENN.tokenize(text) == [token.text for token in tokens]


@given(ODD)
def test_case_and_letters_stay(text):
    letters = [character for character in unescape(text)[0] if character.isalnum()]
    assert [character for token in PENN.tokenize(text) for character in token if character.isalnum()] == letters


@pytest.mark.parametrize("name", ["whitespace", "characters"])
@given(text=ODD)
def test_the_other_tokenizers_cover_all_but_white_space(name, text):
    tokens = tokenizer(name).spans(text)
    assert (
        [text[token.start : token.end] for token in tokens] == [token.text for token in tokens] == tokenizer(name).tokenize(text)
    )
    assert "".join(token.text for token in tokens) == "".join(text.split())


def test_whitespace_and_characters():
    assert tokenizer("whitespace").tokenize(" do n't  &amp; . ") == ["do", "n't", "&amp;", "."]
    assert tokenizer("characters").tokenize("MKT lX\n") == ["M", "K", "T", "l", "X"]


def test_unknown_tokenizer():
    with pytest.raises(InputError, match="'moses'; wanted penn, whitespace or characters"):
        tokenizer("moses")


@pytest.mark.parametrize(
    "piece", ["a", ".", "!", "&", "@", "'", "-", "é", "a+", "@a", "&#1;", "A. ", '."', ":(a", "a.b@", "\n ", "👍\u200d"]
)
def test_time_is_linear_in_the_length(piece):
    """A quadratic step anywhere would take many minutes."""
    text = piece * ((1_000_000 if len(piece) == 1 and piece in "a.é" else 150_000) // len(piece))
    start = time.process_time()
    PENN.spans(text)
    list(split_sentences(text))
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    "sentences",
    [
        ["He left.", "She stayed!", "Why?", "Nobody knows…"],
        ["Mr. Smith met Dr. J. R. Jones of the U.S. Navy at 5 p.m. on Monday.", "It rained."],
        ["They live in the U.S.", "He does not."],
        ['"Stop!" he said.', '"I will."', "(So he did.)", "Then 3.5 million others did."],
        ["See Fig. 3 and pp. 4 ff. for more.", "1. A list item.", "2. Another."],
        ["It cost approx. five dollars, etc. and more.", "Prices vary."],
        ["今日は。", "明日も！", "終わり"],
        ["यह एक है।", "यह दो है।"],
        ["one line without a stop"],
    ],
)
def test_sentences(sentences):
    joined = ("" if sentences[0] == "今日は。" else " ").join(sentences)
    assert [joined[span.start : span.end] for span in split_sentences(joined)] == sentences


def test_empty_lines_and_lines():
    text = "A heading\n\nwrapped\ntext. Another\r\n \r\n last"
    assert [text[a:b] for a, b in split_sentences(text)] == ["A heading", "wrapped\ntext.", "Another", "last"]
    assert [text[a:b] for a, b in split_sentences(text, lines=True)] == ["A heading", "wrapped", "text.", "Another", "last"]


def test_sentences_stream():
    assert next(split_sentences("First. " + "Second. " * 1_000_000)) == Span(0, 6)


@given(ODD, st.booleans())
def test_sentences_lose_nothing(text, lines):
    last = 0
    for span in split_sentences(text, lines=lines):
        assert text[last : span.start].strip() == ""
        assert text[span.start : span.end].strip() == text[span.start : span.end] != ""
        last = span.end
    assert text[last:].strip() == ""


def _benchmark():
    path = Path(__file__).parent.parent / "benchmarks/tokenizer_f1.py"
    spec = importlib.util.spec_from_file_location("tokenizer_f1", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_f1_on_english_web_text(shared):
    figures = _benchmark().measure([shared / f"data/pos/ud-ewt/{part}.conllu.xz" for part in ("dev", "test")])
    assert figures["tokens"]["gold"] > 50_000
    assert figures["tokens"]["f1"] >= 98.0
    assert figures["sentences"]["f1"] >= 79.0


def test_tokenized_news_stays_as_it_is(shared):
    """The corpus the bundled model was trained on: its tokens are ours."""
    import itertools
    import lzma

    with lzma.open(shared / "data/corpus/heldout/wikinews.txt.xz", "rt", encoding="utf-8") as lines:
        rows = [line.split() for line in itertools.islice(lines, 5000)]
    same = sum(PENN.tokenize(" ".join(row)) == row for row in rows)
    assert same >= 0.999 * len(rows)
