import gzip
import lzma

import pytest

from polyseme.errors import FormatError, InputError
from polyseme.tasks.readers import (
    bilm_form,
    check_scheme,
    read_columns,
    read_conllu,
    read_labelled,
    read_trees,
    report_vocabulary,
    split_folder,
)


@pytest.fixture
def write(tmp_path):
    def _write(text, name="data.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def test_conll_2003_columns_with_documents(write):
    path = write(
        "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n-DOCSTART- -X- -X- O\n\nPeter NNP I-NP I-PER\n"
    )
    sentences, scheme = check_scheme(read_columns(path), path)
    assert scheme == "iob1"
    assert [s.tokens for s in sentences] == [("EU", "rejects"), ("Peter",)]
    assert [s.tags for s in sentences] == [("B-ORG", "O"), ("B-PER",)]
    assert [s.document for s in sentences] == [1, 2]
    assert sentences[0].lines == (3, 4)
    assert read_columns(path, tag=1)[0].tags == ("NNP", "VBZ")


def test_tab_columns_may_hold_spaces_and_separators_may_hold_blanks(write):
    path = write("New York\tB-x\r\nCity\tI-x\r\n\t\r\nout\tO")
    assert [s.tokens for s in read_columns(path)] == [("New York", "City"), ("out",)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; wanted tokens with their tags"),
        ("\n\n", "the file is empty"),
        ("a\tO\nb\n", r"line 2: 1 columns \('b'\); wanted 2 as on line 1"),
        ("a\n", "line 1: 1 columns .* wanted at least 2: a token and its tag"),
        ("a\tO\n \tO\n", "line 2: no token in column 1"),
        (b"a\tO\n\xff\tO\n", "not valid UTF-8"),
    ],
)
def test_bad_columns_name_the_line(write, text, message):
    path = write(text)
    with pytest.raises(FormatError, match=message) as error:
        read_columns(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "scheme", "message"),
    [
        ("a\tB-x\n\nb\tO\nc\tI-x\n", "auto", r"line 4 \('c'\): I-x may not follow O in the detected scheme bio"),
        ("a\tO\nb\tB-x\n", "iob1", r"line 2 \('b'\): B-x may not follow O in the given scheme iob1"),
        ("a\tO\nb\tx\n", "auto", "line 2 .*the tag 'x' is none of O, B-LABEL, I-LABEL"),
    ],
)
def test_illegal_tags_name_the_line(write, text, scheme, message):
    path = write(text)
    with pytest.raises(FormatError, match=message):
        check_scheme(read_columns(path), path, scheme)


def test_conllu(write):
    row = "{}\t{}\tl\t{}\t{}\t_\t0\troot\t_\t_\n"
    text = (
        "# newdoc id = d\n# text = don't go\n"
        + row.format("1-2", "don't", "_", "_")
        + row.format(1, "do", "AUX", "VBP")
        + row.format(2, "n't", "PART", "RB")
        + row.format("2.1", "x", "X", "X")
        + row.format(3, "go", "VERB", "VB")
        + "\n# newdoc\n"
        + row.format(1, "Go", "VERB", "VB")
    )
    sentences = read_conllu(write(text))
    assert [s.tokens for s in sentences] == [("do", "n't", "go"), ("Go",)]
    assert sentences[0].tags == ("VBP", "RB", "VB")
    assert sentences[0].lines == (4, 5, 7)
    assert [s.document for s in sentences] == [1, 2]
    assert read_conllu(write(text), column="upos")[0].tags == ("AUX", "PART", "VERB")
    with pytest.raises(FormatError, match="line 1: 2 columns; wanted the 10"):
        read_conllu(write("1\ta\n"))
    with pytest.raises(FormatError, match="line 1: the id 'x'"):
        read_conllu(write(row.format("x", "a", "b", "c")))


def test_trees(write):
    path = write("(3 (2 It) (4 (2 really) (4 works)))\n\n(1 (1 bad) (2 \\*))\n")
    assert [(t.tokens, t.label) for t in read_trees(path)] == [(("It", "really", "works"), "3"), (("bad", "\\*"), "1")]
    phrases = read_trees(path, subtrees=True)
    assert [(" ".join(t.tokens), t.label, t.part) for t in phrases[:5]] == [
        ("It really works", "3", False),
        ("It", "2", True),
        ("really works", "4", True),
        ("really", "2", True),
        ("works", "4", True),
    ]
    assert [t.label for t in read_trees(path, classes=2)] == ["positive", "negative"]
    assert [t.line for t in read_trees(path)] == [1, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(3 (2 It)", "line 1: 1 brackets are never closed"),
        ("(7 It)", "line 1: the label '7'"),
        ("It", "line 1: 'It' stands outside the tree"),
        ("(3 It) (2 is)", "line 1: a second tree begins"),
        ("(3 )", "line 1: a node without words"),
        ("(3 It))", r"line 1: '\)' stands outside"),
        ("", "the file is empty"),
    ],
)
def test_bad_trees_name_the_line(write, text, message):
    with pytest.raises(FormatError, match=message):
        read_trees(write(text))


def test_labelled_text(write):
    assert [(t.label, t.tokens) for t in read_labelled(write("good\tI like it\nbad\tno\n"))] == [
        ("good", ("I", "like", "it")),
        ("bad", ("no",)),
    ]
    with pytest.raises(FormatError, match="line 2: 'no tab here'; wanted a label, a tab"):
        read_labelled(write("good\tyes\nno tab here\n"))
    with pytest.raises(FormatError, match="line 1"):
        read_labelled(write("good\t \n"))


def test_compressed_files_and_missing_ones(write, tmp_path):
    text = b"good\tyes\n"
    assert read_labelled(write(lzma.compress(text), "a.xz")) == read_labelled(write(gzip.compress(text), "a.gz"))
    with pytest.raises(FormatError, match="the compressed file is damaged"):
        read_labelled(write(gzip.compress(text)[:-6], "b.gz"))
    with pytest.raises(FormatError, match="no such file"):
        read_labelled(tmp_path / "nothing.txt")


def test_the_bilm_reads_its_own_spelling():
    tokens = ["``", "''", "-LRB-", "-RRB-", "1\\/2", "\\*", "it’s", "“", "…", "plain"]
    assert [bilm_form(token) for token in tokens] == ['"', '"', "(", ")", "1/2", "*", "it's", '"', "...", "plain"]
    report = report_vocabulary([("``", "plain"), ("odd",)], {'"', "plain"})
    assert (report.tokens, report.unknown_before, report.unknown_after) == (3, 2, 1)
    assert "outside the biLM's vocabulary 66.67 %, in its own spelling 33.33 %" in str(report)


def test_a_folder_of_splits(tmp_path):
    for name in ("train.conll", "dev.conll", "test.conll"):
        (tmp_path / name).write_text("")
    assert {part: path.name for part, path in split_folder(tmp_path).items()} == {
        "train": "train.conll",
        "dev": "dev.conll",
        "test": "test.conll",
    }
    (tmp_path / "train2.conll").write_text("")
    with pytest.raises(InputError, match="holds several train files"):
        split_folder(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        split_folder(tmp_path / "none")


@pytest.mark.parametrize(("part", "sentences"), [("train", 3394), ("dev", 1009), ("test", 1287)])
def test_wnut(shared, part, sentences):
    path = shared / f"data/ner/wnut17/{part}.conll"
    found, scheme = check_scheme(read_columns(path), path)
    assert (len(found), scheme) == (sentences, "bio")


def test_sst_and_ewt(shared):
    data = shared / "data"
    assert len(read_trees(data / "sentiment/sst5/dev.txt")) == 1101
    assert len(read_trees(data / "sentiment/sst5/test.txt")) == 2210
    assert len(read_conllu(data / "pos/ud-ewt/dev.conllu.xz")) == 2001
