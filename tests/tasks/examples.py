"""Small task data and configurations for tests."""

import json
import random
from dataclasses import replace

from polyseme.tasks.choices import ChoicesConfig
from polyseme.tasks.classifier import ClassifierConfig
from polyseme.tasks.config import FitConfig, TaskConfig
from polyseme.tasks.entailment import EntailmentConfig
from polyseme.tasks.inputs import InputsConfig, SpellingConfig, WordConfig
from polyseme.tasks.roles import RolesConfig
from polyseme.tasks.tagger import TaggerConfig

NAMES = {"person": ["Ann", "Bob Miller", "Eve"], "place": ["Rome", "New York", "Bern"]}
SMALL = InputsConfig(words=WordConfig(dim=16), spelling=SpellingConfig(dim=8, filters=((3, 16),)))


def write_entities(path, *, seed=0, count=48):
    """BIO columns of made-up sentences in which names are told by their spelling."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as stream:
        for _ in range(count):
            for _ in range(rng.randint(1, 3)):
                for word in rng.choice(["she met", "he saw", "then , in", "from"]).split():
                    stream.write(f"{word}\tO\n")
                label = rng.choice(sorted(NAMES))
                for number, word in enumerate(rng.choice(NAMES[label]).split()):
                    stream.write(f"{word}\t{'I' if number else 'B'}-{label}\n")
            stream.write(".\tO\n\n")
    return path


def write_opinions(path, *, seed=0, count=100):
    """label<TAB>text."""
    rng = random.Random(seed)
    words = {"good": ["great", "fine", "lovely"], "bad": ["awful", "dull", "poor"]}
    with open(path, "w", encoding="utf-8") as stream:
        for _ in range(count):
            label = rng.choice(sorted(words))
            stream.write(
                f"{label}\tthe {rng.choice(['film', 'play'])} was {rng.choice(words[label])} {rng.choice(['.', 'indeed .'])}\n"
            )
    return path


def write_roles(path, *, seed=0, count=48):
    """JSON lines of one or two made-up clauses, of which each has its predicate: who acts, on what, when."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as stream:
        for _ in range(count):
            tokens, predicates = [], []
            for number in range(rng.randint(1, 2)):
                tokens += ["and"] * number
                clause = [(["then"], "ARGM-TMP")] * rng.randint(0, 1) + [(rng.choice(["Ann", "the dog"]).split(), "ARG0")]
                clause += [([rng.choice(["saw", "bit", "ate"])], "V"), (rng.choice(["Bob", "a fine cake"]).split(), "ARG1")]
                tags = ["O"] * len(tokens)
                for words, role in clause:
                    if role == "V":
                        predicates.append({"index": len(tokens), "lemma": words[0]})
                    tokens += words
                    tags += [f"B-{role}", *[f"I-{role}"] * (len(words) - 1)]
                predicates[-1]["tags"] = tags
            for predicate in predicates:
                predicate["tags"] += ["O"] * (len(tokens) - len(predicate["tags"]))
            stream.write(json.dumps({"tokens": tokens, "predicates": predicates}) + "\n")
    return path


def write_pairs(path, *, seed=0, count=120):
    """Pairs in SNLI's tokenized form: the hypothesis repeats what happens, denies it, or speaks of somebody else."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as stream:
        for _ in range(count):
            who, what = rng.choice(["Ann", "the dog", "a man"]), rng.choice(["runs", "sits", "sings"])
            label = rng.choice(["entailment", "contradiction", "neutral"])
            hypothesis = {"entailment": f"{who} {what}", "contradiction": f"{who} never {what}", "neutral": f"Bob {what}"}[label]
            pair = {"label": label, "premise": f"{who} {what} here".split(), "hypothesis": hypothesis.split()}
            stream.write(json.dumps(pair) + "\n")
    return path


def write_choices(path, *, seed=0, count=120):
    """Questions after a thing of which one of two to four answers speaks."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as stream:
        for _ in range(count):
            things = rng.sample(["sun", "sea", "cat", "car", "tree"], rng.randint(2, 4))
            label = rng.randrange(len(things))
            answers = [f"it is the {thing}" for thing in things]
            stream.write(json.dumps({"question": f"where is the {things[label]} ?", "answers": answers, "label": label}) + "\n")
    return path


def tagger(tmp_path, *, model=None, inputs=SMALL, epochs=8, **changes):
    config = TaskConfig(
        model=model or TaggerConfig(hidden=16, layers=1, dropout=0.0),
        inputs=inputs,
        fit=FitConfig(epochs=epochs, batch=4, learning_rate=0.02),
        train=str(write_entities(tmp_path / "train.conll")),
        dev=str(write_entities(tmp_path / "dev.conll", seed=1, count=8)),
        folder=str(tmp_path / "run"),
    )
    return replace(config, **changes)


def classifier(tmp_path, *, model=None, inputs=SMALL, epochs=8, **changes):
    config = TaskConfig(
        model=model or ClassifierConfig(dense=16, hidden=8, input_dropout=0.0, dense_dropout=0.0, head_dropout=(0.0, 0.0, 0.0)),
        inputs=inputs,
        fit=FitConfig(epochs=epochs, batch=8, learning_rate=0.01),
        train=str(write_opinions(tmp_path / "train.tsv")),
        dev=str(write_opinions(tmp_path / "dev.tsv", seed=1, count=12)),
        folder=str(tmp_path / "run"),
    )
    return replace(config, **changes)


def roles(tmp_path, *, model=None, inputs=SMALL, epochs=6, **changes):
    config = TaskConfig(
        model=model or RolesConfig(hidden=24, layers=2, indicator=8, dropout=0.0, finder=8),
        inputs=inputs,
        fit=FitConfig(epochs=epochs, batch=4, learning_rate=0.02),
        train=str(write_roles(tmp_path / "train.jsonl")),
        dev=str(write_roles(tmp_path / "dev.jsonl", seed=1, count=8)),
        folder=str(tmp_path / "run"),
    )
    return replace(config, **changes)


def entailment(tmp_path, *, inputs=SMALL, epochs=4, **changes):
    config = TaskConfig(
        model=EntailmentConfig(hidden=16, dropout=0.0),
        inputs=inputs,
        fit=FitConfig(epochs=epochs, batch=8, learning_rate=0.01),
        train=str(write_pairs(tmp_path / "train.jsonl")),
        dev=str(write_pairs(tmp_path / "dev.jsonl", seed=1, count=60)),
        folder=str(tmp_path / "run"),
    )
    return replace(config, **changes)


def choices(tmp_path, *, inputs=SMALL, epochs=4, **changes):
    config = entailment(tmp_path, inputs=inputs, epochs=epochs)
    files = {
        "train": str(write_choices(tmp_path / "train.jsonl")),
        "dev": str(write_choices(tmp_path / "dev.jsonl", seed=1, count=60)),
    }
    return replace(config, model=ChoicesConfig(hidden=16, dropout=0.0), **files, **changes)
