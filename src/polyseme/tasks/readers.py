"""Readers of labelled text: CoNLL columns, CoNLL-U, sentiment trees, label<TAB>text, and the biLM's spelling of tokens.

Every error names the file, the line and what was wanted there. Names ending in .xz or .gz are decompressed.
"""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TextIO, cast

from polyseme.errors import FormatError, InputError
from polyseme.tasks.spans import Scheme, detect_scheme, first_illegal, read_spans, write_tags


@dataclass(frozen=True)
class TaggedSentence:
    """One sentence and its tags, None where they are not known; the number of its document, and each token's line."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int = 0
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class LabelledText:
    """A tokenized text and its class, None where it is not known. `part` is set for a sub-tree of a larger text."""

    tokens: tuple[str, ...]
    label: str | None
    part: bool = False
    line: int = 0


def open_text(path: str | Path) -> TextIO:
    """Opens UTF-8 text, decompressing by the name's ending."""
    import gzip
    import lzma

    path = Path(path)
    if not path.is_file():
        raise FormatError(f"{path}: no such file; give the path of a data file.")
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    return cast(TextIO, opener(path, "rt", encoding="utf-8"))


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; a byte order mark is dropped and broken UTF-8 is an error."""
    number = 0
    with open_text(path) as stream:
        try:
            for number, line in enumerate(stream, 1):
                yield number, line.rstrip("\r\n").removeprefix("\ufeff" if number == 1 else "")
        except UnicodeDecodeError as error:
            where = f"{path}, after line {number}"
            raise FormatError(f"{where}: not valid UTF-8 ({error.reason}); save the file as UTF-8.") from error
        except (OSError, EOFError) as error:
            raise FormatError(f"{path}, after line {number}: the compressed file is damaged ({error}).") from error


def read_columns(path: str | Path, *, token: int = 0, tag: int | None = -1, document: str = "-DOCSTART-") -> list[TaggedSentence]:
    """CoNLL columns: one token a line, sentences parted by blank lines, columns by tabs where a line has one, else by spaces.

    `token` and `tag` count the columns from 0, or from the end with -1; with `tag=None` only the tokens are read. A line
    whose token is `document` begins a new document. All lines must have the same number of columns.
    """
    sentences: list[TaggedSentence] = []
    tokens: list[str] = []
    tags: list[str] = []
    documents = 0
    lines: list[int] = []
    width: tuple[int, int] | None = None
    for number, line in [*read_lines(path), (0, "")]:
        fields = line.split("\t") if "\t" in line else line.split()
        if fields and fields[0] == document:
            documents += 1
            continue
        if not line.strip():
            if tokens:
                found = None if tag is None else tuple(tags)
                sentences.append(TaggedSentence(tuple(tokens), found, documents, tuple(lines)))
            tokens, tags, lines = [], [], []
            continue
        width = width or (len(fields), number)
        if len(fields) != width[0]:
            raise FormatError(
                f"{path}, line {number}: {len(fields)} columns ({line!r}); wanted {width[0]} as on line {width[1]}, and blank "
                "lines between sentences."
            )
        wanted = 1 + max(index if index >= 0 else -index - 1 for index in (token, token if tag is None else tag))
        if tag is not None and len(fields) == 1:
            wanted = 2
        if len(fields) < wanted:
            raise FormatError(
                f"{path}, line {number}: {len(fields)} columns ({line!r}); wanted at least {wanted}: a token and its tag."
            )
        if not fields[token].strip():
            raise FormatError(f"{path}, line {number}: no token in column {token + 1} ({line!r}); wanted one on every line.")
        lines.append(number)
        tokens.append(fields[token].strip())
        if tag is not None:
            tags.append(fields[tag].strip())
    return _some(sentences, path, "tokens with their tags")


def check_scheme(
    sentences: Sequence[TaggedSentence], path: str | Path, scheme: Scheme | Literal["auto"] = "auto"
) -> tuple[list[TaggedSentence], Scheme]:
    """The sentences with their tags in BIO, and the scheme they were in; an illegal tag is an error that names its line."""
    known = [sentence.tags for sentence in sentences if sentence.tags is not None]
    found = detect_scheme(known) if scheme == "auto" else scheme
    checked = []
    for sentence in sentences:
        tags = sentence.tags
        if tags is not None:
            wrong = first_illegal(tags, found)
            if wrong is not None:
                position, reason = wrong
                raise FormatError(
                    f"{path}, line {sentence.lines[position]} ({sentence.tokens[position]!r}): {reason} in the "
                    f"{'detected' if scheme == 'auto' else 'given'} scheme {found}; correct the tag, or name another scheme "
                    "(iob1, bio, bioul, bioes)."
                )
            tags = tuple(write_tags(read_spans(tags), len(tags), "bio"))
        checked.append(replace(sentence, tags=tags))
    return checked, found


def read_conllu(path: str | Path, *, column: Literal["upos", "xpos"] = "xpos") -> list[TaggedSentence]:
    """CoNLL-U: the forms and one of the part-of-speech columns; ranges (1-2) and empty nodes (1.1) are passed over."""
    sentences: list[TaggedSentence] = []
    tokens: list[str] = []
    tags: list[str] = []
    documents = 0
    lines: list[int] = []
    index = {"upos": 3, "xpos": 4}[column]
    for number, line in [*read_lines(path), (0, "")]:
        if line.startswith("#"):
            documents += line.startswith("# newdoc")
        elif not line.strip():
            if tokens:
                sentences.append(TaggedSentence(tuple(tokens), tuple(tags), documents, tuple(lines)))
            tokens, tags, lines = [], [], []
        else:
            fields = line.split("\t")
            if len(fields) != 10:
                raise FormatError(f"{path}, line {number}: {len(fields)} columns; wanted the 10 tab-separated ones of CoNLL-U.")
            if fields[0].isdigit():
                if not fields[1] or not fields[index]:
                    raise FormatError(f"{path}, line {number}: an empty form or {column}; wanted both ('_' where unknown).")
                lines.append(number)
                tokens.append(fields[1])
                tags.append(fields[index])
            elif not re.fullmatch(r"\d+[-.]\d+", fields[0]):
                raise FormatError(
                    f"{path}, line {number}: the id {fields[0]!r}; wanted a number, a range (1-2) or an empty node (1.1)."
                )
    return _some(sentences, path, "CoNLL-U sentences")


_TREE = re.compile(r"\(|\)|[^\s()]+")


def read_trees(path: str | Path, *, subtrees: bool = False, classes: Literal[2, 5] = 5) -> list[LabelledText]:
    """Sentiment trees, one a line: (3 (2 It) (4 works)). `subtrees` adds every phrase after its whole sentence.

    With two classes, 0 and 1 become "negative", 3 and 4 "positive", and neutral texts are left out.
    """
    texts: list[LabelledText] = []
    for number, line in read_lines(path):
        if line.strip():
            nodes = _read_tree(line, f"{path}, line {number}")
            for tokens, label in nodes if subtrees else nodes[:1]:
                name: str | None = label
                if classes == 2:
                    name = {"0": "negative", "1": "negative", "3": "positive", "4": "positive"}.get(label)
                if name is not None:
                    texts.append(LabelledText(tokens, name, len(tokens) < len(nodes[0][0]), number))
    return _some(texts, path, "labelled trees such as (3 (2 It) (4 works))")


def _read_tree(line: str, where: str) -> list[tuple[tuple[str, ...], str]]:
    """The tokens and label of each node, the root first."""
    tokens: list[str] = []
    open_nodes: list[tuple[int, int, str]] = []
    nodes: list[tuple[int, int, str] | None] = []
    pieces = _TREE.findall(line)
    position = 0
    while position < len(pieces):
        piece = pieces[position]
        if piece == "(":
            label = pieces[position + 1] if position + 1 < len(pieces) else ""
            if label not in ("0", "1", "2", "3", "4"):
                raise FormatError(f"{where}: the label {label!r} after '('; wanted 0, 1, 2, 3 or 4.")
            if not open_nodes and nodes:
                raise FormatError(f"{where}: a second tree begins; wanted one tree a line.")
            open_nodes.append((len(nodes), len(tokens), label))
            nodes.append(None)
            position += 2
            continue
        if not open_nodes:
            raise FormatError(f"{where}: {piece!r} stands outside the tree; wanted one tree such as (3 (2 It) (4 works)).")
        if piece == ")":
            number, begun, label = open_nodes.pop()
            if begun == len(tokens):
                raise FormatError(f"{where}: a node without words; wanted a word or two sub-trees in each.")
            nodes[number] = (begun, len(tokens), label)
        else:
            tokens.append(piece)
        position += 1
    if open_nodes:
        raise FormatError(f"{where}: {len(open_nodes)} brackets are never closed; wanted one whole tree a line.")
    return [(tuple(tokens[begun:end]), label) for begun, end, label in cast(list[tuple[int, int, str]], nodes)]


def read_labelled(path: str | Path) -> list[LabelledText]:
    """label<TAB>text, one a line; tokens are parted by spaces. Blank lines are passed over."""
    texts = []
    for number, line in read_lines(path):
        if line.strip():
            label, tab, text = line.partition("\t")
            if not tab or not label.strip() or not text.strip():
                raise FormatError(f"{path}, line {number}: {line[:60]!r}; wanted a label, a tab, and a text that is not empty.")
            texts.append(LabelledText(tuple(text.split()), label.strip(), line=number))
    return _some(texts, path, "lines of the form label<TAB>text")


def _some(records: list, path: str | Path, wanted: str) -> list:
    if not records:
        raise FormatError(f"{path}: the file is empty; wanted {wanted}.")
    return records


#: Penn Treebank and typographic forms, and how the pretraining text writes them.
_FORMS = {
    "``": '"', "''": '"', "`": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "‘": "'", "’": "'", "´": "'",
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}",
    "-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}",
    "—": "--", "…": "...",
}  # fmt: skip


def bilm_form(token: str) -> str:
    r"""The token as the pretraining text spells it: Penn quotes, brackets and `\/` undone, typographic quotes made plain."""
    if token in _FORMS:
        return _FORMS[token]
    token = token.replace("\\/", "/").replace("\\*", "*")
    return token.replace("’", "'").replace("‘", "'") if "’" in token or "‘" in token else token


def bilm_text(texts: Iterable[Sequence[str]]) -> list[str]:
    """The distinct texts as lines of tokens in the biLM's spelling, to pretrain on; blanks inside a token part it."""
    lines = (" ".join(bilm_form(token) for token in text).split() for text in texts)
    return list(dict.fromkeys(" ".join(line) for line in lines if line))


@dataclass(frozen=True)
class VocabularyReport:
    """How many of a data set's tokens the biLM's vocabulary does not hold, as they were and in the biLM's spelling."""

    tokens: int
    unknown_before: int
    unknown_after: int

    def __str__(self) -> str:
        if not self.tokens:
            return "no tokens"
        before, after = (100 * unknown / self.tokens for unknown in (self.unknown_before, self.unknown_after))
        return f"{self.tokens:,} tokens, outside the biLM's vocabulary {before:.2f} %, in its own spelling {after:.2f} %"


def report_vocabulary(sentences: Iterable[Sequence[str]], vocabulary: Container[str]) -> VocabularyReport:
    """Counts the tokens outside the vocabulary before and after `bilm_form`."""
    tokens = before = after = 0
    for sentence in sentences:
        for token in sentence:
            tokens += 1
            before += token not in vocabulary
            after += bilm_form(token) not in vocabulary
    return VocabularyReport(tokens, before, after)


def split_folder(folder: str | Path) -> dict[str, Path]:
    """The files of a data folder that are named train*, dev* (or valid*) and test*."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give one that holds train, dev and test files, or name the files one by one.")
    found = {}
    for part, starts in {"train": ("train",), "dev": ("dev", "valid"), "test": ("test",)}.items():
        files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name.startswith(starts)]
        if len(files) > 1:
            names = ", ".join(path.name for path in files)
            raise InputError(f"{folder} holds several {part} files ({names}); name the one to use.")
        if files:
            found[part] = files[0]
    return found
