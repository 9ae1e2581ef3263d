"""Readers of pairs and choices: SNLI's JSON lines, tokenized or as published, and questions with several answers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.errors import FormatError, InputError
from polyseme.tasks.json_lines import is_tokens, read_objects
from polyseme.text import tokenizer

_PAIR = '{"label": ..., "premise": [...], "hypothesis": [...]}, or SNLI\'s own with gold_label, sentence1 and sentence2'
_CHOICE = (
    '{"question": ..., "answers": [..., ...], "label": 0}, or {"question": {"stem": ..., "choices": [...]}, "answerKey": "A"}'
)
_LEAF = re.compile(r"[^\s()]+")


@dataclass(frozen=True)
class Pair:
    """A premise, a hypothesis, and how the second follows from the first; None where that is not known."""

    premise: tuple[str, ...]
    hypothesis: tuple[str, ...]
    label: str | None
    line: int = 0


@dataclass(frozen=True)
class Choice:
    """A question, its answers, and the number of the right one, from 0; None where it is not known."""

    question: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    label: int | None
    line: int = 0


def read_pairs(path: str | Path, *, labelled: bool = True) -> list[Pair]:
    """Pairs in JSON lines, in either of two forms; those on which the annotators did not agree ("-") are left out.

    Texts are lists of tokens or strings. A string is cut by the Penn tokenizer, or stands as the leaves of its parse where
    the published files give one. Not `labelled`, labels are not looked at and every pair is kept.
    """
    pairs = []
    cut = tokenizer("penn").tokenize
    for number, values in read_objects(path, wanted=_PAIR):
        where = f"{path}, line {number}"
        published = "sentence1" in values
        names = ("gold_label", "sentence1", "sentence2") if published else ("label", "premise", "hypothesis")
        label = values.get(names[0]) if labelled else None
        if labelled and not (isinstance(label, str) and label):
            raise FormatError(f"{where}: {names[0]} is {_short(label)}; wanted a label: {_PAIR}.")
        if label == "-":
            continue
        premise, hypothesis = (
            _leaves(values.get(f"{name}_binary_parse")) or _tokens(values.get(name), f"{where}: {name}", cut)
            for name in names[1:]
        )
        pairs.append(Pair(premise, hypothesis, label, number))
    return pairs


def read_choices(path: str | Path, *, labelled: bool = True) -> list[Choice]:
    """Questions with their answers in JSON lines, in either of two forms; texts are lists of tokens or strings."""
    choices = []
    cut = tokenizer("penn").tokenize
    for number, values in read_objects(path, wanted=_CHOICE):
        where = f"{path}, line {number}"
        question, answers, label = values.get("question"), values.get("answers"), values.get("label")
        if isinstance(question, dict):
            offered = question.get("choices")
            if not isinstance(offered, list) or not all(isinstance(choice, dict) for choice in offered):
                raise FormatError(f"{where}: choices is {_short(offered)}; wanted a list of objects with label and text.")
            keys = [choice.get("label") for choice in offered]
            answers, key = [choice.get("text") for choice in offered], values.get("answerKey")
            question = question.get("stem")
            label = keys.index(key) if key in keys else None
            if labelled and label is None:
                raise FormatError(f"{where}: answerKey is {_short(key)}; wanted one of {', '.join(map(str, keys))}.")
        if not isinstance(answers, list) or len(answers) < 2:
            raise FormatError(f"{where}: answers is {_short(answers)}; wanted two or more: {_CHOICE}.")
        if not labelled:
            label = None
        elif not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < len(answers):
            raise FormatError(
                f"{where}: label is {_short(label)}; wanted the number of the right answer, 0 to {len(answers) - 1}."
            )
        texts = tuple(_tokens(answer, f"{where}: answer {place}", cut) for place, answer in enumerate(answers))
        choices.append(Choice(_tokens(question, f"{where}: question", cut), texts, label, number))
    return choices


def split_item(
    item: str | Sequence[Any], cut: Callable[[str], list[str]], *, wanted: str, least: int, most: int | None
) -> list[tuple[str, ...]]:
    """The texts of what a user gives: a line in which tabs part them, or a list of raw texts or of lists of tokens."""
    parts: Sequence[Any] = item.split("\t") if isinstance(item, str) else item
    if len(parts) < least or (most is not None and len(parts) > most):
        raise InputError(f"{str(item)[:60]!r} holds {len(parts)} texts; wanted {wanted}.")
    texts = [cut(part) if isinstance(part, str) else part for part in parts]
    if not all(isinstance(text, (list, tuple)) and all(isinstance(token, str) for token in text) for text in texts):
        raise InputError(f"{str(item)[:60]!r}: each text must be a string or a list of tokens; wanted {wanted}.")
    return [tuple(text) for text in texts]


def _tokens(value: object, where: str, cut: Callable[[str], list[str]]) -> tuple[str, ...]:
    if isinstance(value, str):
        value = cut(value)
    if not isinstance(value, list) or not is_tokens(value):
        raise FormatError(f"{where} is {_short(value)}; wanted a text or a list of tokens that is not empty.")
    return tuple(value)


def _leaves(parse: object) -> tuple[str, ...]:
    return tuple(_LEAF.findall(parse)) if isinstance(parse, str) else ()


def _short(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
