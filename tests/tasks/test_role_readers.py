import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import FormatError
from polyseme.tasks.role_readers import (
    Proposition,
    read_role_columns,
    read_role_columns_2012,
    read_role_objects,
    role_object,
    write_brackets,
    write_role_columns,
)
from tasks.test_role_scores import tagged


@pytest.fixture
def write(tmp_path):
    def _write(text):
        path = tmp_path / "data.txt"
        path.write_text(text if isinstance(text, str) else "\n".join(map(json.dumps, text)))
        return path

    return _write


SHARED_TASK = """\
Ms. NNP  *      (PER*  -   -       (A0*     (A0*
Ann NNP  *)     *)     -   -       *)       *)
said VBD (S*    *      01  say     (V*)     *
she PRP  *      *      -   -       (A1*     (C-A0*)
left VBD *      *      01  leave   *)       (V*)
.   .    *)     *      -   -       *        *

No DT *    *  - -
. .   *    *  - -
"""


def test_columns_of_the_shared_task(write):
    one, other = read_role_columns(write(SHARED_TASK))
    assert one.tokens == ("Ms.", "Ann", "said", "she", "left", ".")
    assert one.propositions == (
        Proposition(2, ("B-A0", "I-A0", "B-V", "B-A1", "I-A1", "O"), "say"),
        Proposition(4, ("B-A0", "I-A0", "O", "B-C-A0", "B-V", "O"), "leave"),
    )
    assert (other.tokens, other.propositions, other.lines) == (("No", "."), (), (8, 9))
    assert write_role_columns(one).splitlines()[:3] == ["Ms.\t-\t(A0*\t(A0*", "Ann\t-\t*)\t*)", "said\tsay\t(V*)\t*"]
    assert [found.tags for found in read_role_columns(write(SHARED_TASK), labelled=False)[0].propositions] == [None, None]


def test_columns_without_roles_or_without_predicates(write):
    text = "Ann\t-\nsaw\tsee\nBob\t-\n\nshe\t-\n"
    assert [s.propositions for s in read_role_columns(write(text), labelled=False)] == [(Proposition(1, None, "see"),), ()]
    assert [s.propositions for s in read_role_columns(write("Ann\t-\nsaw\t-\n"), labelled=False)] == [None]
    with pytest.raises(FormatError, match="line 1: 1 predicates in column 2, but 0 columns after it"):
        read_role_columns(write(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; wanted columns of tokens"),
        ("a - *\nb see (V*)\nc -\n", r"line 3: 2 columns; wanted 3 as on line 1"),
        ("a - *\nb see (V*)\n\nc - *\nd - *\n", "line 4: 0 predicates in column 2, but 1 columns after it"),
        ("a - *\nb see (V*)\n\nc\n", "line 4: 1 columns; wanted the predicates or - in column 2"),
        ("a *\nb (V*)\n", "line 1: no column with the predicates"),
        ("a - (A0*\nb see (V*)\n", r"line 2, column 3: '\(V\*\)' begins inside \(A0"),
        ("a see (V*)\nb - (A0*\n", r"line 2, column 3: \(A0 is not closed"),
        ("a see (V*)\nb - *)\n", r"line 2, column 3: '\*\)' closes a role, which is not open"),
        ("a see (V*)\nb - (A0*A1)\n", r"line 2, column 3: '\(A0\*A1\)' closes A1"),
        ("a see (V*)\n\na see (V\n", r"line 3, column 3: '\(V'; wanted brackets such as"),
    ],
)
def test_bad_columns_name_the_line(write, text, message):
    path = write(text)
    with pytest.raises(FormatError, match=message) as error:
        read_role_columns(path)
    assert str(path) in str(error.value)


CONLL_2012 = """\
#begin document (bc/x); part 000
bc/x 0 0 Ann  NNP (S* -    -  - ann * (ARG0*) * -
bc/x 0 1 came VBD *   come 01 1 ann * (V*)    * (1)
bc/x 0 2 home NN  *   -    -  - ann * *       (V*) -
bc/x 0 3 .    .   *)  -    -  - ann * *       * -

#end document
#begin document (bc/x); part 001
bc/x 1 0 Yes UH * - - - ann * -
#end document
"""


def test_conll_2012(write):
    one, other = read_role_columns_2012(write(CONLL_2012))
    assert (one.tokens, one.pos, one.document, other.document) == (("Ann", "came", "home", "."), ("NNP", "VBD", "NN", "."), 0, 1)
    assert one.propositions == (
        Proposition(1, ("B-ARG0", "B-V", "O", "O"), "come", "01"),
        Proposition(2, ("O", "O", "B-V", "O"), None, None),
    )
    assert other.propositions == ()
    assert read_role_columns_2012(write(CONLL_2012), labelled=False)[0].propositions[0].tags is None
    alone = CONLL_2012.split("#end document\n")[1]
    assert read_role_columns_2012(write(alone), labelled=False)[0].propositions is None
    with pytest.raises(FormatError, match=r"line 2: column 13 has no \(V\*\)"):
        read_role_columns_2012(write(CONLL_2012.replace("*       (V*) -", "*       (A*) -")))
    with pytest.raises(FormatError, match="line 1: 3 columns; wanted the 12 or more"):
        read_role_columns_2012(write("a - *\n"))


ONE = {
    "tokens": ["a", "b"],
    "pos": ["X", "Y"],
    "predicates": [{"index": 1, "lemma": "b", "roleset": "b.01", "tags": ["O", "B-V"]}],
}


def test_json_lines(write):
    path = write([{**ONE, "doc": "x"}, {**ONE, "doc": "x"}, {**ONE, "doc": "y"}])
    sentences = read_role_objects(path)
    assert sentences[0].propositions == (Proposition(1, ("O", "B-V"), "b", "b.01"),)
    assert [sentence.document for sentence in sentences] == [1, 1, 2]
    assert role_object(sentences[0]) == ONE
    path = write([{"tokens": ["a"]}, {"tokens": ["a"], "predicates": [{"index": 0, "tags": "?"}]}])
    assert [s.propositions for s in read_role_objects(path, labelled=False)] == [None, (Proposition(0, None),)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; wanted JSON lines"),
        ("\n{", "line 2: no valid JSON"),
        ("[]", r"line 1: '\[\]' is no JSON object"),
        ([{}], "line 1: 'tokens' is missing; wanted a list of strings"),
        ([{"tokens": ["a", ""], "predicates": []}], r"line 1: 'tokens' is \['a', ''\]"),
        ([ONE | {"pos": ["X"]}], "line 1: 'pos' does not go with the 2 tokens"),
        ([ONE, {"tokens": ["a"]}], "line 2: 'predicates' is missing"),
        ([ONE | {"predicates": [{"index": 2, "tags": ["O", "O"]}]}], "line 1: the predicate .* wanted an index between 0 and 1"),
        ([ONE | {"predicates": [[1]]}], r"line 1: the predicate \[1\]"),
        ([ONE | {"predicates": [{"index": 1, "tags": ["O"]}]}], "predicate at 1: 1 tags; wanted one BIO tag for each of the 2"),
        ([ONE | {"predicates": [{"index": 1}]}], "line 1, predicate at 1: no list of tags"),
        ([ONE | {"predicates": [{"index": 1, "tags": ["O", "I-A0"]}]}], "line 1, predicate at 1, token 1: I-A0 may not"),
    ],
)  # fmt: skip
def test_bad_json_lines_name_the_line(write, text, message):
    path = write(text)
    with pytest.raises(FormatError, match=message) as error:
        read_role_objects(path)
    assert str(path) in str(error.value)


@given(st.integers(1, 9).flatmap(tagged))
def test_brackets_say_what_tags_say(tmp_path_factory, tags):
    path = tmp_path_factory.mktemp("columns") / "x"
    column = write_brackets(tags)
    path.write_text("".join(f"w {'v' if n == 0 else '-'} {cell}\n" for n, cell in enumerate(column)))
    assert list(read_role_columns(path)[0].propositions[0].tags) == tags


@pytest.mark.parametrize(("part", "sentences", "predicates"), [("dev", 1966, 4952), ("test", 2058, 4795)])
def test_propbank(shared, part, sentences, predicates):
    found = read_role_objects(shared / f"data/roles/propbank-ewt/{part}.jsonl.xz")
    assert (len(found), sum(len(sentence.propositions) for sentence in found)) == (sentences, predicates)
