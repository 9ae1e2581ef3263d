"""Small corpora, and a run in a process of its own that can be killed."""

import random
from multiprocessing.synchronize import Event
from pathlib import Path

from polyseme.bulk.run import embed_corpus
from polyseme.bulk.settings import bulk_settings
from polyseme.sources import Reader
from tiny import WORDS, tiny_elmo


def corpus(lines: int = 200, *, seed: int = 0) -> str:
    """Lines of known words, every tenth of them blank, and some that stand twice."""
    chance = random.Random(seed)
    made = [" ".join(chance.choices(WORDS[3:], k=chance.randint(1, 30))) for _ in range(lines)]
    made[::10] = [""] * len(made[::10])
    made[1], made[-1] = "the cat sat", "the cat sat"
    return "".join(line + "\n" for line in made)


def files_of(folder: Path) -> dict[str, bytes]:
    """Everything in a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_to_be_killed(text: Path, output: Path, begun: Event) -> None:
    """Stores the corpus in many small parts; `begun` is set when everything is ready to compute."""
    elmo = tiny_elmo()
    elmo.warm()
    settings = bulk_settings(elmo, tokenized=True, part_tokens=300)
    begun.set()
    embed_corpus(Reader([text]), output, elmo, settings)


def run_with_workers(text: Path, output: Path, begun: Event) -> None:
    """The same in two processes."""
    elmo = tiny_elmo()
    settings = bulk_settings(elmo, tokenized=True, part_tokens=300)
    begun.set()
    embed_corpus(Reader([text]), output, elmo, settings, workers=2)


def children_of(process: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def runs(process: int) -> bool:
    """Whether a process is there and not only waiting to be reaped."""
    status = Path(f"/proc/{process}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
