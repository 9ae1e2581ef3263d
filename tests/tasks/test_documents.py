import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import FormatError
from polyseme.tasks.documents import Document, Mention, from_text, mark, read_conll2012, read_e2e, write_conll2012, write_e2e

CONLL = """\
#begin document (bc/cctv/00/cctv_0000); part 000
bc/cctv/00/cctv_0000 0 0 Ann NNP (TOP* - - - Speaker#1 * -  (0)
bc/cctv/00/cctv_0000 0 1 saw VBD * see 01 1 Speaker#1 * (V*) -
bc/cctv/00/cctv_0000 0 2 her PRP$ * - - - Speaker#1 * - (1|(0)
bc/cctv/00/cctv_0000 0 3 cat NN *) - - - Speaker#1 * - 1)

bc/cctv/00/cctv_0000 0 0 It PRP * - - - Speaker#2 * - (1)
#end document
#begin document (nw/x); part 003
nw/x 3 0 Hm UH * - - - - * - -
#end document
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_conll_2012(tmp_path):
    first, second = read_conll2012(write(tmp_path / "a.conll", CONLL))
    assert first.sentences == (("Ann", "saw", "her", "cat"), ("It",))
    assert first.clusters == (((0, 1), (2, 3)), ((2, 4), (4, 5)))
    assert (first.genre, first.speakers) == ("bc", ("Speaker#1",) * 4 + ("Speaker#2",))
    assert (second.name, second.part, second.clusters, second.speakers) == ("nw/x", 3, (), ())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  (0)", " (0", r"line 2: a mention of cluster 0 never ends; wanted 0\) after it"),
        ("- 1)", "- 2)", r"line 5: a mention of cluster 2 ends that has not begun"),
        ("(1)", "[1]", r"line 7: '\[1\]' in the last column; wanted -, or brackets"),
        ("see 01 1", "see 01", "line 3: 12 columns; wanted 13 as on the lines before"),
        ("#end document\n#begin", "#begin", "line 8: a document begins inside another one"),
        ("#begin document (bc/cctv/00/cctv_0000); part 000\n", "", "line 1: .* stands outside a document"),
        ("nw/x 3 0 Hm UH * - - - - * - -\n", "", "line 10: the document 'nw/x' is empty"),
        ("- -\n#end document\n", "- -\n", "line 10: the file ends inside the document 'nw/x'"),
        (CONLL, "\n", "the file is empty; wanted documents"),
        (CONLL, "#end document\n", "line 1: #end document, but no document has begun"),
        ("nw/x 3 0 Hm UH * - - - - * - -", "Hm -", "line 10: 2 columns; wanted at least 5"),
    ],
)
def test_broken_columns(tmp_path, old, new, message):
    assert old in CONLL
    with pytest.raises(FormatError, match=message):
        read_conll2012(write(tmp_path / "a.conll", CONLL.replace(old, new, 1)))


def test_e2e_lines(tmp_path):
    values = {"doc_key": "bn/1", "sentences": [["Ann", "ran"], ["she", "won"]], "clusters": [[[0, 0], [2, 2]], [[0, 1]]]}
    text = json.dumps(values) + "\n\n" + json.dumps(values | {"genre": "talk", "speakers": [["A", "A"], ["B", "B"]]}) + "\n"
    first, second = read_e2e(write(tmp_path / "a.jsonl", text))
    assert first.clusters == (((0, 1), (2, 3)), ((0, 2),))
    assert (first.genre, second.genre, second.speakers) == ("bn", "talk", ("A", "A", "B", "B"))
    (bare,) = read_e2e(write(tmp_path / "b.jsonl", '{"sentences": [["a"], []]}'))
    assert (bare.name, bare.clusters, bare.genre) == ("1", None, "")
    again = read_e2e(write(tmp_path / "c.jsonl", write_e2e(second, second.clusters)))
    assert again == [second]
    assert json.loads(write_e2e(first, [])) | {"clusters": 0} == values | {
        "clusters": 0, "genre": "bn", "gold_clusters": values["clusters"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: no JSON"),
        ("[]", "line 1: no document; wanted an object with sentences"),
        ('{"sentences": [], "clusters": []}', "line 1: the document '1' is empty; wanted at least one token"),
        ('{"doc_key": "x", "sentences": [[]]}', "the document 'x' is empty"),
        ('{"sentences": ["a b"]}', "sentences is no list of lists of strings"),
        ('{"sentences": [["a", "b"]], "clusters": [[[1, 2]]]}', r"\[1, 2\] lies outside the document, which has tokens 0 to 1"),
        ('{"sentences": [["a", "b"]], "clusters": [[[-1, 0]]]}', "lies outside the document"),
        ('{"sentences": [["a", "b"]], "clusters": [[[1, 0]]]}', "lies outside the document"),
        ('{"sentences": [["a", "b"]], "clusters": [[[0, 1.5]]]}', r"wanted \[first, last\], two token numbers"),
        ('{"sentences": [["a", "b"]], "clusters": [[0, 1]]}', r"wanted \[first, last\]"),
        ('{"sentences": [["a", "b"]], "clusters": {"0": []}}', "wanted a list of lists"),
        ('{"sentences": [["a", "b"]], "speakers": [["A"]]}', "1 speakers of 2 tokens; wanted one for each token"),
        ("", "the file is empty; wanted one JSON document a line"),
    ],
)
def test_broken_lines(tmp_path, line, message):
    with pytest.raises(FormatError, match=message):
        read_e2e(write(tmp_path / "a.jsonl", line + "\n"))


def nested(spans):
    """The spans without those that cross an earlier one."""
    kept = []
    for start, length in spans:
        span = Mention(start, min(12, start + length))
        if span not in kept and not any(a < span.start < b < span.end or span.start < a < span.end < b for a, b in kept):
            kept.append(span)
    return kept


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 5))).map(nested), st.lists(st.integers(0, 3), min_size=144))
def test_clusters_survive_columns_and_marking(tmp_path_factory, spans, choices):
    tokens = [f"w{number}" for number in range(12)]
    clusters = tuple(tuple(sorted(s for s, c in zip(spans, choices, strict=False) if c == number)) for number in range(4))
    clusters = tuple(cluster for cluster in clusters if cluster)
    document = Document("a/b", (tuple(tokens[:5]), tuple(tokens[5:])), clusters)
    path = tmp_path_factory.getbasetemp() / "nested.conll"
    (again,) = read_conll2012(write(path, write_conll2012(document, clusters)))
    assert (again.sentences, set(again.clusters)) == (document.sentences, set(clusters))
    found, open_spans, place = {}, [], 0
    for piece in mark(document, clusters).replace("]", " ]").split():
        if piece.startswith("["):
            open_spans.append((int(piece[1:]), place))
        elif piece == "]":
            number, start = open_spans.pop()
            found.setdefault(number, set()).add((start, place))
        else:
            assert piece == tokens[place]
            place += 1
    assert not open_spans
    assert found == {number: set(cluster) for number, cluster in enumerate(clusters, 1)}


def test_raw_text_keeps_its_places():
    text = "  Ann isn't here.\n\nWas “she” &amp; Bob?  "
    document = from_text(text)
    assert document.sentences[0] == ("Ann", "is", "n't", "here", ".")
    assert [text[start:end] for start, end in document.places[5:]] == ["Was", "“", "she", "”", "&amp;", "Bob", "?"]
    assert mark(document, [[Mention(0, 1), Mention(7, 8)], [Mention(6, 9)]]) == (
        "  [1 Ann] isn't here.\n\nWas [2 “[1 she]”] &amp; Bob?  "
    )
    assert from_text(" \n ").sentences == ()
