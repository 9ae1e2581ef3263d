import paper_rows
from polyseme.tasks.answer_scores import answer_scores
from polyseme.tasks.answers import Answer
from polyseme.tasks.coreference import Coreferences
from polyseme.tasks.documents import Mention


def test_predictions_of_documents_and_questions_are_lines():
    answer = Coreferences(((Mention(0, 2), Mention(5, 6)), (Mention(3, 4), Mention(7, 9))))
    line = paper_rows.write_clusters(answer)
    assert line == "[[[0,2],[5,6]],[[3,4],[7,9]]]"
    assert paper_rows.read_clusters(line) == answer
    assert paper_rows.read_clusters(paper_rows.write_clusters(Coreferences(()))) == Coreferences(())
    found = Answer("New\nYork  City", 3, 6, 0.5)
    line = paper_rows.write_answer(found)
    assert line == "New York City"
    wanted = [["new york city"]]
    assert answer_scores([paper_rows.read_answer(line).text], wanted) == answer_scores([found.text], wanted)


def test_elmo_goes_where_the_tasks_have_it():
    rows = {row.name: row for row in paper_rows.rows()}
    assert (rows["answers"].elmo.place, rows["answers"].elmo.context) == ("both", "document")
    assert (rows["coreference"].elmo.place, rows["coreference"].elmo.context) == ("input", "sentence")
