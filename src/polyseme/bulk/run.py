"""A whole run: portions to parts, in this process or in several, from where an earlier run stopped; the manifest last."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.bulk.alongside import made_here
from polyseme.bulk.parts import Receipt, describe_part, identity, part_name, receipt_of
from polyseme.bulk.place import Place
from polyseme.bulk.portions import InputCounts, Portion, portions
from polyseme.bulk.settings import BulkSettings
from polyseme.errors import InputError
from polyseme.progress import Report
from polyseme.sources import Reader
from polyseme.vectors import FORMAT, MANIFEST, VERSION

if TYPE_CHECKING:
    from polyseme.elmo import Elmo

#: Makes the parts of portions, in their order.
Maker = Callable[[Iterable[Portion]], Iterator[Receipt]]
_WAY_OUT = "Repeat the command as it was, name a new folder, or give --overwrite"


def embed_corpus(
    reader: Reader,
    output: str | Path,
    elmo: "Elmo",
    settings: BulkSettings,
    *,
    workers: int = 1,
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Stores the vectors of everything the reader reads in a folder, and returns its manifest.

    A folder that an earlier run with the same input, model and settings left unfinished is finished; the files are then
    the same, byte for byte, as if nothing had happened.

    Args:
        reader: the input; texts, or tokenized lines where `settings.tokenization` is None.
        output: a local folder, or the URI of one.
        elmo: the model.
        settings: see `bulk_settings`.
        workers: processes that compute side by side, sharing the memory of the weights. Nothing else depends on it.
        overwrite: delete what the folder holds of stored vectors first.
        report: is told how many tokens are done.

    Raises:
        InputError: the folder holds something else, or was begun with another input, model or other settings.
        FormatError: the input is damaged; the message names file and line.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; wanted at least 1.")
    place = Place(output)
    advance = adding(report)

    def alone(wanted: Iterable[Portion]) -> Iterator[Receipt]:
        return made_here(wanted, elmo, settings, place, advance)

    def together(wanted: Iterable[Portion]) -> Iterator[Receipt]:
        for receipt in made_by_workers(wanted, elmo, settings, place, workers):
            advance(receipt["tokens"])
            yield receipt

    with place.held():
        return complete(reader, place, elmo, settings, alone if workers == 1 else together, overwrite=overwrite, advance=advance)


def adding(report: Report | None) -> Callable[[int], None]:
    """Tells `report` the sum of what it is called with."""
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        if report is not None:
            report(done)

    return advance


def complete(
    reader: Reader,
    place: Place,
    elmo: "Elmo",
    settings: BulkSettings,
    make: Maker,
    *,
    overwrite: bool = False,
    advance: Callable[[int], None] = lambda tokens: None,
) -> dict[str, Any]:
    """Makes every part that is not there yet, then the manifest, in a place that this process holds."""
    there = _parts_there(place, elmo, settings, overwrite=overwrite)
    counts = InputCounts()
    receipts: dict[str, Receipt] = {}

    def missing() -> Iterator[Portion]:
        for portion in portions(reader, settings, counts):
            name = part_name(portion.number, settings)
            if name in there:
                receipts[name] = _stored(place, name, portion, elmo, settings)
                there.discard(name)
                advance(receipts[name]["tokens"])
            else:
                yield portion

    for receipt in make(missing()):
        receipts[receipt["file"]] = receipt
    if there:
        raise InputError(f"{place.name} holds more parts than this input makes: it was begun with another. {_WAY_OUT}.")
    manifest = _manifest(
        elmo, settings, counts, [receipts[name] for name in sorted(receipts, key=lambda name: (len(name), name))]
    )
    content = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    if MANIFEST in place.names():
        with place.open(MANIFEST) as file:
            if file.read() == content:
                return manifest
    with place.writing(MANIFEST) as file:
        file.write(content)
    return manifest


def _parts_there(place: Place, elmo: "Elmo", settings: BulkSettings, *, overwrite: bool) -> set[str]:
    """The whole parts of an earlier run, known to be of the same model and settings."""
    names = place.names()
    parts = [name for name in names if name.startswith("part-")]
    others = [name for name in names if name not in parts and name != MANIFEST]
    if others:
        raise InputError(f"{place.name} holds {', '.join(others[:3])}, which is no part of stored vectors; name a new folder.")
    if overwrite:
        for name in sorted(names, key=lambda name: name != MANIFEST):
            place.remove(name)
        return set()
    if parts:
        found = describe_part(place, parts[0])
        different = _differences(found["settings"], identity(settings))
        if found["model"] != elmo.hash:
            different.insert(0, f"the model (hash {found['model'][:12]} there, {elmo.hash[:12]} here)")
        if different:
            raise InputError(f"{place.name} was begun with other settings: {'; '.join(different)}. {_WAY_OUT}.")
    elif MANIFEST in names:
        with place.open(MANIFEST) as file:
            found = json.loads(file.read())
        if found.get("settings") != identity(settings) or found.get("model", {}).get("hash") != elmo.hash:
            raise InputError(f"{place.name} was made, from an empty input, with another model or settings. {_WAY_OUT}.")
    return set(parts)


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Settings that differ, but for those that only follow from others."""
    names = [name for name in here if there.get(name) != here[name]]
    telling = [name for name in names if name not in ("columns", "widths", "rows", "portion")] or names
    return [f"{name} ({json.dumps(there.get(name))} there, {json.dumps(here[name])} here)" for name in telling]


def _stored(place: Place, name: str, portion: Portion, elmo: "Elmo", settings: BulkSettings) -> Receipt:
    """The receipt of a part of an earlier run, made from the very same sentences."""
    found = describe_part(place, name)
    if found["input"] != portion.digest():
        last = portion.first + len(portion.sentences)
        raise InputError(
            f"{place.name} was begun with another input: {name} was not made from what are sentences {portion.first:,} to "
            f"{last - 1:,} now. {_WAY_OUT}."
        )
    if found["settings"] != identity(settings) or found["model"] != elmo.hash:
        raise InputError(f"{place.name}/{name} was made with another model or settings than part 0. {_WAY_OUT}.")
    return receipt_of(place, name, found)


def _manifest(elmo: "Elmo", settings: BulkSettings, counts: InputCounts, receipts: list[Receipt]) -> dict[str, Any]:
    """Nothing in it depends on when, how fast or by how many processes the parts were made."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": {"name": elmo.name, "hash": elmo.hash, "layers": list(elmo.layers), "widths": list(elmo.config.layer_dims)},
        "settings": identity(settings),
        "columns": [{"layer": layer, "width": width} for layer, width in zip(settings.columns, settings.widths, strict=True)],
        "inputs": [{"name": name, "texts": texts} for name, texts in counts.texts.items()],
        "sentences": sum(receipt["sentences"] for receipt in receipts),
        "tokens": sum(receipt["tokens"] for receipt in receipts),
        "parts": list(receipts),
    }


def made_by_workers(
    wanted: Iterable[Portion], elmo: "Elmo", settings: BulkSettings, place: Place, workers: int
) -> Iterator[Receipt]:
    """The parts of the portions, made by processes of their own, at most two portions ahead for each of them."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    import torch

    from polyseme.bulk.shared_model import SharedModel
    from polyseme.bulk.worker import begin, work

    folder = place.work if place.local is not None else None
    threads = max(1, torch.get_num_threads() // workers)
    with SharedModel.write(elmo, folder) as shared:
        executor = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=begin,
            initargs=(shared, settings, place, threads),
        )
        waiting: deque[Future[Receipt]] = deque()
        try:
            for portion in wanted:
                waiting.append(executor.submit(work, portion))
                if len(waiting) >= 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise InputError(
                "a worker process was ended from outside, perhaps for want of memory; run the same command again to go on, "
                "with fewer --workers if need be."
            ) from error
        finally:
            executor.shutdown(cancel_futures=True)
