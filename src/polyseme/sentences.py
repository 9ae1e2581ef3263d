"""What users call sentences → lists of tokens: nesting, types, tokenization, neighbours as context."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Literal

from polyseme.errors import InputError

#: A sentence as it may be given: text, which the model's tokenizer cuts, or a list of tokens.
Sentence = str | Sequence[str]
#: How far a sentence's vectors may see: itself, all the sentences given, or so many words on each side.
Context = Literal["sentence", "document"] | int


def read_sentences(sentences: Iterable[Sentence], tokenize: Callable[[str], list[str]], *, raw: bool) -> list[list[str]]:
    """The tokens of every sentence; every string is a legal token.

    Args:
        sentences: strings, or lists of tokens, not both.
        tokenize: how strings are cut.
        raw: the strings are sentences, even if none of them holds white space.
    """
    if isinstance(sentences, (str, bytes)):
        raise InputError(f"one string was given, {_shown(sentences)}; give a list of sentences: [{_shown(sentences)}].")
    given = _listed(sentences, "sentences")
    if given and isinstance(given[0], str):
        return _from_texts(given, tokenize, raw=raw)
    return [_tokens(sentence, number) for number, sentence in enumerate(given)]


def windows(sentences: Iterable[Sentence], size: int, tokens: int) -> Iterator[list[Sentence]]:
    """Runs of at most `size` sentences and, but for the last one in it, at most so many tokens (or letters of text)."""
    if isinstance(sentences, (str, bytes)):
        raise InputError(f"one string was given, {_shown(sentences)}; give a list of sentences: [{_shown(sentences)}].")
    window: list[Sentence] = []
    held = 0
    for sentence in sentences:
        window.append(sentence)
        held += len(sentence) if hasattr(sentence, "__len__") else 1
        if len(window) >= size or held >= tokens:
            yield window
            window, held = [], 0
    if window:
        yield window


def spread(sentences: Sequence[list[str]], context: Context) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """The rows that are read, and for each sentence its row and where in it the sentence begins.

    Args:
        sentences: the tokens of all sentences, in reading order.
        context: "sentence", each by itself; "document", all in one row; n, each with up to n words of its neighbours
            on either side.
    """
    if context == "document":
        ends = list(accumulate(len(sentence) for sentence in sentences))
        begins = [(0, end - len(sentence)) for sentence, end in zip(sentences, ends, strict=True)]
        return [[word for sentence in sentences for word in sentence]], begins
    if context == "sentence" or context == 0:
        return list(sentences), [(row, 0) for row in range(len(sentences))]
    if isinstance(context, bool) or not isinstance(context, int) or context < 0:
        raise InputError(f"context is {context!r}; wanted 'sentence', 'document', or the number of words on each side.")
    rows, places = [], []
    for number, sentence in enumerate(sentences):
        earlier = (word for other in range(number - 1, -1, -1) for word in reversed(sentences[other]))
        later = (word for other in range(number + 1, len(sentences)) for word in sentences[other])
        before = list(islice(earlier, context))[::-1]
        rows.append([*before, *sentence, *islice(later, context)])
        places.append((number, len(before)))
    return rows, places


def _from_texts(given: Sequence[object], tokenize: Callable[[str], list[str]], *, raw: bool) -> list[list[str]]:
    for number, text in enumerate(given):
        if not isinstance(text, str):
            raise InputError(
                f"sentence 0 is a string, but sentence {number} is {_kind(text)}; give strings or lists of tokens throughout."
            )
    texts = [text for text in given if isinstance(text, str)]
    if not raw and len(texts) > 1 and not any(character.isspace() for text in texts for character in text):
        raise InputError(
            f"{len(texts)} strings without any white space were given ({_shown(texts[0])}, {_shown(texts[1])}, ...). If they are "
            "the tokens of one sentence, give [[...]], a list of lists; if each is a sentence of its own, give raw=True."
        )
    return [tokenize(text) for text in texts]


def _tokens(sentence: object, number: int) -> list[str]:
    tokens = _listed(sentence, f"sentence {number}")
    for position, token in enumerate(tokens):
        if not isinstance(token, str):
            hint = "lists of tokens stand in one list, not deeper" if isinstance(token, (list, tuple)) else "tokens are strings"
            raise InputError(
                f"token {position} of sentence {number} is {_kind(token)}; {hint}: [['the', 'first'], ['the', 'second']]."
            )
    return [token for token in tokens if isinstance(token, str)]


def _listed(value: object, what: str) -> list[object]:
    """The items of a list-like value: anything in a fixed order that is no text."""
    if isinstance(value, (str, bytes, dict, set, frozenset)) or not isinstance(value, Iterable):
        hint = "give strings or lists of tokens throughout" if isinstance(value, str) else "wanted a list"
        raise InputError(f"{what} is {_kind(value)}; {hint}.")
    try:
        return list(value)
    except TypeError as error:  # an array without dimensions
        raise InputError(f"{what} is {_kind(value)}; wanted a list.") from error


def _kind(value: object) -> str:
    return f"{_shown(value)} ({type(value).__name__})"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
