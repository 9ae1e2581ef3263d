import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseme.errors import FormatError, InputError
from polyseme.tasks.questions import Context, read_squad, split_articles

TEXT = "Ann isn't in Rome (Italy). She flew to “New York” in 1999–2000."


def squad(**changes):
    answers = [
        {"text": "Rome (Italy)", "answer_start": 13},
        {"text": "Rome", "answer_start": 13},
        {"text": "ome", "answer_start": 14},
    ]
    entry = {"id": "q1", "question": "Where isn't Ann?", "answers": answers} | changes
    return {"version": "1.1", "data": [{"title": "Ann", "paragraphs": [{"context": TEXT, "qas": [entry]}]}]}


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_answers_are_found_among_the_tokens(tmp_path):
    (question,) = read_squad(write(tmp_path / "a.json", squad()))
    assert question.tokens == ("Where", "is", "n't", "Ann", "?")
    assert question.answers == ("Rome (Italy)", "Rome", "ome")
    assert question.spans == ((4, 8), (4, 5))  # "ome" is covered by the token Rome, which is there already
    assert [question.context.part(*span) for span in question.spans] == ["Rome (Italy)", "Rome"]
    assert question.context.sentences[1][3:6] == ('"', "New", "York")
    assert question.context.part(12, 16) == "“New York”"
    (unlabelled,) = read_squad(tmp_path / "a.json", labelled=False)
    assert (unlabelled.answers, unlabelled.spans) == (None, ())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (squad(answers=[{"text": "Rome", "answer_start": 14}]), "question 'q1': the answer 'Rome' does not stand"),
        (squad(answers=[{"text": "Rome", "answer_start": -50}]), "at character -50 of the context, where '' does"),
        (squad(answers=[{"text": "Paris", "answer_start": 900}]), "at character 900 of the context, where '' does"),
        (squad(answers=[{"text": " ", "answer_start": 3}]), "the answer ' ' holds no token"),
        (squad(answers=[{"text": "Rome"}]), "question 'q1': no answer_start; wanted a number"),
        (squad(answers=[]), "no answer; wanted at least one"),
        (squad(question=3), "no question; wanted a text"),
        ({"data": [{"title": "T", "paragraphs": [{"context": " \n", "qas": []}]}]}, "'T', paragraph 1: the context is empty"),
        ({"data": [{"title": "T"}]}, "article 'T': no paragraphs; wanted a list"),
        ({"data": [3]}, r"article '\?': no paragraphs"),
        ({"data": []}, "no questions; wanted a SQuAD v1.1 file"),
        ([], "no data; wanted a list there"),
        ("", "no JSON"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, value, message):
    with pytest.raises(FormatError, match=message):
        read_squad(write(tmp_path / "a.json", value))


@given(st.text(alphabet=" \nabc.,'\"“(1–&;", max_size=40), st.integers(0, 40), st.integers(1, 8))
def test_the_fewest_tokens_that_hold_an_answer(text, begin, length):
    context = Context.from_text(text)
    found = context.cover(begin, begin + length)
    wanted = set(range(begin, min(len(text), begin + length)))
    tokens = [set(range(*place)) for place in context.places]
    if found is None:
        assert not any(token & wanted for token in tokens)
        return
    first, last = found
    assert tokens[first] & wanted
    assert tokens[last - 1] & wanted
    assert not any(token & wanted for token in [*tokens[:first], *tokens[last:]])
    assert context.part(first, last).strip()


def test_context_of_tokens():
    context = Context.from_tokens([["a", "bc"], [], ["d"]])
    assert (context.text, context.part(1, 3), context.part(1, 1)) == ("a bc d", "bc d", "")


def test_the_split_depends_on_the_titles_alone():
    articles = [{"title": f"title {number}"} for number in range(10)]
    first, second, rest = split_articles(articles, 3, 2)
    assert [len(part) for part in (first, second, rest)] == [3, 2, 5]
    assert split_articles(articles[::-1], 3, 2) == [first, second, rest]
    assert sorted(article["title"] for part in (first, second, rest) for article in part) == [a["title"] for a in articles]
    assert first == [{"title": "title 3"}, {"title": "title 2"}, {"title": "title 6"}]
    with pytest.raises(InputError, match="10 articles cannot be split into parts of 8, 3"):
        split_articles(articles, 8, 3)
