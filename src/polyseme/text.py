"""Text → tokens: a Penn-like tokenizer, white space, and characters; and raw text → sentences.

A token knows which characters of the text it came from. The Penn-like tokenizer writes quotes, dashes and HTML entities in
the plain form the models were trained on, so its tokens are not always the very characters they cover; it never changes
case. docs/tokenization.md lists its rules.
"""

import html
import itertools
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple, Protocol

from polyseme.errors import InputError


class Token(NamedTuple):
    """A token and where it stands: `text[start:end]` of the text it was read from, entities as they were written."""

    text: str
    start: int
    end: int


class Span(NamedTuple):
    """A stretch of text, from `start` up to and without `end`."""

    start: int
    end: int


class Tokenizer(Protocol):
    """Splits one sentence, or any other text, into tokens."""

    def tokenize(self, text: str) -> list[str]:
        """The tokens."""
        ...

    def spans(self, text: str) -> list[Token]:
        """The tokens with their places in the text."""
        ...


def tokenizer(name: Literal["penn", "whitespace", "characters"]) -> Tokenizer:
    """The tokenizer of that name, as `BiLMConfig.tokenization` gives it."""
    if name == "penn":
        return PennTokenizer()
    if name == "whitespace":
        return WhitespaceTokenizer()
    if name == "characters":
        return CharacterTokenizer()
    raise InputError(f"there is no tokenizer {name!r}; wanted penn, whitespace or characters.")


class WhitespaceTokenizer:
    """A token is whatever stands between white space: for text that is tokenized already."""

    def tokenize(self, text: str) -> list[str]:
        """The tokens."""
        return text.split()

    def spans(self, text: str) -> list[Token]:
        """The tokens with their places in the text."""
        return [Token(match.group(), *match.span()) for match in _CHUNK.finditer(text)]


class CharacterTokenizer:
    """Every character that is not white space is a token: for protein sequences, one residue a letter."""

    def tokenize(self, text: str) -> list[str]:
        """The tokens."""
        return [character for character in text if not character.isspace()]

    def spans(self, text: str) -> list[Token]:
        """The tokens with their places in the text."""
        return [Token(character, place, place + 1) for place, character in enumerate(text) if not character.isspace()]


# Words that keep their period: the first always, the second only before a number. Initials (J. Smith) and letters with inner
# periods (U.S., e.g., p.m.) need no list. The third never end a sentence; the fourth show that an abbreviation did.
_ABBREVIATIONS = frozenset(
    """
    Mr Mrs Ms Dr Prof Messrs Mme Mlle Sen Rep Reps Sens Gov Gen Lt Col Sgt Capt Cmdr Maj Adm Rev Hon Pres St Ste Sr Jr Esq
    Mon Tue Tues Wed Thu Thur Thurs Fri Inc Corp Ltd Co Cos Bros Assn Dept Univ Inst Govt Mfg etc al vs viz cf ca approx esp
    incl Jan Feb Aug Sept Oct Nov Dec Ave Blvd Rd Hwy Mt Ft Pvt Supt Insp Atty Gens Msgr Bldg Ariz Ark Calif Colo Conn Fla
    Ill Kan Ky Mich Minn Mo Mont Neb Nev Okla Ore Penn Pa Tenn Tex Va Vt Wis Wyo Wm Chas Geo
    """.split()
)
_BEFORE_NUMBERS = frozenset(
    """
    No no Nos nos p pp Fig fig Figs figs Vol vol Vols vols Eq eq Eqs Sec sec Ch ch Art art Nr nr Ref ref tel Tel ext Ext Ph
    ph Mar Apr Jun Jul Sat Sun
    """.split()
)
_TITLES = frozenset(
    "Mr Mrs Ms Dr Prof Messrs Mme Mlle Sen Rep Gov Gen Lt Col Sgt Capt Cmdr Maj Rev Hon St Mt Ft vs cf viz al".split()
)
_STARTERS = frozenset(
    """
    The A An This That These Those There Here He She It We You They I In On At By For From With As If When While After
    Before But And Or So Yet Then However Although Because Since My His Her Its Our Your Their What Who Why How Where Which
    One Some Many Most All No Not Now To Of Under Both Each Every Such Also Meanwhile Moreover Thus Therefore
    """.split()
)

_CHUNK = re.compile(r"\S+")
_NEXT = re.compile(r"\s*+(\S?)")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_ACRONYM = re.compile(r"(?:(?:Ph|[^\W\d_])\.)+[^\W\d_]{1,2}")
_WEB = re.compile(r"(?:(?:https?|ftp)://|mailto:|www\.)[^\s\"<>]+", re.IGNORECASE)
_PAGE = re.compile(r"(?:[\w-]+\.)+[a-z]{2,6}/[^\s\"<>]*")
_MAIL = re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+")
_CLITICS = ("'s", "'m", "'d", "'re", "'ve", "'ll", "n't")
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»", '"'),
        **dict.fromkeys("‘’‚‛`´", "'"),
        **dict.fromkeys("‐‑–", "-"),
        "—": "--",
        "―": "--",
        "…": "...",
    }
)
# A stop with its closing quotes and brackets before white space; an East Asian or Indic stop; an empty line.
_STOP = re.compile(
    r"(?<![.!?…])(?P<mark>[.!?…]++)['\"’”»)\]]*+(?=\s|\Z)|[。！？｡।॥]++[」』”’）]*+|(?P<paragraph>\n[^\S\n]*+(?:\n[^\S\n]*+)++)"
)
_WORD_BEFORE = re.compile(r"[^\s(\[{\"'“‘/-]+\Z")
_WORD_AFTER = re.compile(r"\s*+[\"'“”‘’«»(\[{<]*+(?P<word>\w{0,24})")
_LINE = re.compile(r"[^\n]+")
_DOUBLE = frozenset(("``", "''", "’’", "‘‘", "´´"))
_LEADING, _TRAILING = "([{<\"'“‘", ".,;:!?'\"’”)]}>"


@cache
def _pattern() -> re.Pattern[str]:
    """What a token can be; the alternatives are tried in this order. Every one of them reads a stretch in linear time."""
    marks = _character_class("PS", without="_")
    word = rf"[^\s{marks}]"
    inner = r"[.'’‘`´/&@·‐‑–-]|(?<=[0-9])[,:](?=[0-9])"  # what may stand between two word characters
    rule = r"=+*~|<>^\\#"  # signs that are drawn in rows
    modifier = "[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]"
    return re.compile(
        rf"(?P<word>{word}+(?:(?:{inner}){word}+)*)(?P<period>\.(?!\.))?"
        r"|(?P<dots>\.{2,}|…)"
        rf"|(?P<face>(?<!{word})[:;=][-'^]?(?:[()\[\]|/\\*]+|[DPp])(?!{word}))"
        rf"|(?P<dash>-{{2,}}+(?![{rule}])|[–—―]+)"
        rf"|(?P<rule>[-{rule}]{{3,}}|(?P<same>[=~^|<>\\#])(?P=same))"
        rf"|(?P<clitic>['’](?:[sSmMdD]|re|ve|ll|RE|VE|LL)(?!{word}))"
        r"|(?P<quote>``|''|’’|‘‘|´´)"
        rf"|(?P<name>@{word}+)"
        r"|[!?]+"
        rf"|[{marks}]{modifier}*(?:\u200d[{marks}]{modifier}*)*"
        r"|.",
        re.DOTALL,
    )


def _character_class(kinds: str, *, without: str) -> str:
    """The inside of a regular expression's [...] with every character of these general categories."""
    places = [code for code in range(0x20000) if unicodedata.category(chr(code))[0] in kinds and chr(code) not in without]
    ranges = []
    for _, group in itertools.groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        codes = [code for _, code in group]
        ranges.append(f"\\U{codes[0]:08x}-\\U{codes[-1]:08x}")
    return "".join(ranges)


def unescape(text: str) -> tuple[str, list[int] | None, list[int] | None]:
    """The text with its HTML entities replaced, and for each of its characters where it starts and ends in the original.

    The lists are None where nothing was replaced. An entity is replaced once: `&amp;lt;` becomes `&lt;`. What is not a known
    entity with its semicolon stays as it is.
    """
    if "&" not in text:
        return text, None, None
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    begin = 0
    for match in _ENTITY.finditer(text):
        replaced = html.unescape(match.group())
        if replaced == match.group() or not replaced:
            continue
        starts.extend(range(begin, match.start()))
        ends.extend(range(begin + 1, match.start() + 1))
        parts += [text[begin : match.start()], replaced]
        starts.extend([match.start()] * len(replaced))
        ends.extend([match.end()] * len(replaced))
        begin = match.end()
    if not parts:
        return text, None, None
    starts.extend(range(begin, len(text)))
    ends.extend(range(begin + 1, len(text) + 1))
    return "".join(parts) + text[begin:], starts, ends


class PennTokenizer:
    """Splits as the Penn Treebank and Moses do, keeps case, un-escapes HTML entities, writes quotes and dashes plainly.

    Any text is legal; the time is linear in its length. Everything but white space ends up in exactly one token.
    """

    def tokenize(self, text: str) -> list[str]:
        """The tokens."""
        return [token.text for token in self.spans(text)]

    def spans(self, text: str) -> list[Token]:
        """The tokens with their places in the text as it was given."""
        clean, starts, ends = unescape(text)
        tokens = []
        for begin, end in _places(clean):
            written = clean[begin:end]
            if not written.isascii() or written[0] in "`'":
                written = _plain(written)
            if starts is None or ends is None:
                tokens.append(Token(written, begin, end))
            else:
                tokens.append(Token(written, starts[begin], ends[end - 1]))
        return tokens


def _plain(token: str) -> str:
    """The token in the characters the models know: straight quotes, "-" within words and "--" between them, "..."."""
    if token in _DOUBLE:
        return '"'
    if token[0] in "–—―" and token.strip("–—―") == "":
        return "--"
    return token.translate(_PLAIN)


def _places(clean: str) -> Iterator[tuple[int, int]]:
    """Where the tokens of un-escaped text begin and end."""
    for match in _CHUNK.finditer(clean):
        chunk, begin, end = match.group(), match.start(), match.end()
        if chunk.isalpha() and len(chunk) != len("cannot"):
            yield begin, end
            continue
        done = begin
        for address in _addresses(chunk):
            yield from _split(clean, done, begin + address.start)
            done = begin + address.end
            yield begin + address.start, done
        yield from _split(clean, done, end)


def _addresses(chunk: str) -> Iterator[Span]:
    """The places of web and mail addresses, without the punctuation around them."""
    lower = chunk.lower()
    if "://" in lower or "www." in lower or "mailto:" in lower:
        for match in _WEB.finditer(chunk):
            kept = match.group().rstrip(_TRAILING)
            if "(" in kept and match.group()[len(kept) : len(kept) + 1] == ")":
                kept += ")"
            yield Span(match.start(), match.start() + len(kept))
    elif "@" in chunk or "/" in chunk:
        start = len(chunk) - len(chunk.lstrip(_LEADING))
        end = len(chunk.rstrip(_TRAILING))
        if start < end and (_MAIL.fullmatch(chunk, start, end) or _PAGE.fullmatch(chunk, start, end)):
            yield Span(start, end)


def _split(clean: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The places of the tokens in a stretch without white space and without addresses."""
    for match in _pattern().finditer(clean, begin, end):
        if match.lastgroup not in ("word", "period"):
            yield match.span()
            continue
        start, stop = match.span("word")
        if match["period"] is None:
            yield from _contractions(clean, start, stop)
        elif _keeps_period(clean, start, stop):
            yield start, stop + 1
        else:
            yield from _contractions(clean, start, stop)
            yield stop, stop + 1


def _contractions(clean: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """A word's parts: do n't, it 's, can not, I 'd 've."""
    cuts = []
    end = stop
    while True:
        tail = clean[max(start, end - 3) : end].lower().translate(_PLAIN)
        clitic = next((clitic for clitic in _CLITICS if tail.endswith(clitic)), None)
        if clitic is None or end - len(clitic) <= start:
            break
        end -= len(clitic)
        cuts.append(end)
    if end - start == 6 and clean[start:end].lower() == "cannot":
        cuts.append(start + 3)
    for cut in reversed(cuts):
        yield start, cut
        start = cut
    yield start, stop


def _keeps_period(clean: str, start: int, stop: int) -> bool:
    """Whether the period after a word belongs to it."""
    word = clean[start:stop] if stop - start < 24 else ""
    if word in _ABBREVIATIONS or _ACRONYM.fullmatch(word):
        return True
    after = _following(clean, stop + 1)
    if word in _BEFORE_NUMBERS:
        return after.isdigit()
    if len(word) == 1 and word.isupper() and word != "I":
        return after.isupper()
    return start == 0 and len(word) <= 2 and word.isdecimal() and after != ""


def _following(text: str, place: int) -> str:
    """The first character from `place` on that is not white space, or nothing."""
    match = _NEXT.match(text, place)
    return "" if match is None else match.group(1)


def split_sentences(text: str, *, lines: bool = False) -> Iterator[Span]:
    """The sentences of raw text, one after the other, without the white space around them.

    A sentence ends at . ! ? … (with closing quotes and brackets) before white space, unless an abbreviation or what follows
    says otherwise; at East Asian and Indic full stops; and at an empty line, or with `lines` at every line's end. The time is
    linear in the length of the text, and the first sentence is there before the last has been looked at.
    """
    if lines:
        for line in _LINE.finditer(text):
            for span in split_sentences(line.group()):
                yield Span(line.start() + span.start, line.start() + span.end)
        return
    begin = 0
    for match in _STOP.finditer(text):
        if match["mark"] is None or _ends_sentence(text, begin, match):
            yield from _trimmed(text, begin, match.end())
            begin = match.end()
    yield from _trimmed(text, begin, len(text))


def _trimmed(text: str, begin: int, end: int) -> Iterator[Span]:
    """The stretch without white space at its ends, unless nothing is left."""
    inside = text[begin:end]
    start = begin + len(inside) - len(inside.lstrip())
    stop = begin + len(inside.rstrip())
    if start < stop:
        yield Span(start, stop)


def _ends_sentence(text: str, begin: int, stop: re.Match[str]) -> bool:
    """Whether a stop before white space ends the sentence that began at `begin`."""
    following = _WORD_AFTER.match(text, stop.end())
    after = "" if following is None else following.group("word")
    if after[:1].islower():
        return False
    if stop["mark"] != "." or stop.end() > stop.end("mark"):
        return True
    before = text[max(begin, stop.start() - 24) : stop.start()]
    word = _WORD_BEFORE.search(before)
    if word is None:
        return True
    name = word.group()
    if name.isdecimal() and text[begin : stop.start()].strip() == name:
        return False  # the number of a list item
    if name in _TITLES:
        return False
    if name in _BEFORE_NUMBERS:
        return not after[:1].isdigit()
    initial = len(name) == 1 and name.isupper() and name != "I"
    if initial or name in _ABBREVIATIONS or _ACRONYM.fullmatch(name):
        return after in _STARTERS
    return True
