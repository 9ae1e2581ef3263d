"""Ray: vectors of a Ray data set's texts, and a corpus stored by a cluster. Needs `pip install polyseme[ray]`."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from polyseme.bulk.parts import Receipt, make_part
from polyseme.bulk.place import Place
from polyseme.bulk.portions import Portion
from polyseme.bulk.run import adding, complete
from polyseme.bulk.settings import BulkSettings
from polyseme.elmo import Elmo
from polyseme.errors import InputError
from polyseme.progress import Report
from polyseme.selection import Layers, Pool
from polyseme.sources import Reader
from polyseme.vectors import column_of
from polyseme.weights.loading import checkpoint_of, load
from polyseme.weights.loading import elmo as elmo_of

if TYPE_CHECKING:
    import pyarrow

#: Letters of text that wait in Ray's object store at a time; it moves to disk what does not fit into memory.
_WAVE = 1 << 31


class EmbedBatches:
    """A callable for `map_batches` of a Ray data set: batches of texts in, one row for each token out.

    Ray makes one in each of its actors, so the model is loaded once for each:

        dataset.map_batches(EmbedBatches, fn_constructor_args=("en-small",), batch_size=256, concurrency=4)

    A row that comes out has all columns of the row its token stands in, and `position`, `token` and `vector_X` for each
    layer X (with `pool`, one row for each text and neither position nor token).
    """

    def __init__(
        self,
        model: str | Path | Elmo,
        *,
        field: str = "text",
        layers: Layers = "top",
        pool: Pool | None = None,
        state: Literal["warm", "zero"] = "warm",
        precision: Literal["float32", "bfloat16"] = "float32",
        dtype: Literal["float32", "float16"] = "float16",
        device: str = "cpu",
    ) -> None:
        """`field`: the column of texts, or of lists of tokens; the rest as `polyseme.load` and `Elmo.embed` take it."""
        elmo = model if isinstance(model, Elmo) else load(model)
        self.elmo = elmo.to(device)
        self.field, self.layers, self.pool, self.state, self.precision, self.dtype = field, layers, pool, state, precision, dtype

    def __call__(self, batch: "dict[str, Any] | pyarrow.Table") -> "pyarrow.Table":
        """One batch, as Ray gives it in any of its batch formats but pandas."""
        import numpy as np
        import pyarrow as pa

        table = batch if isinstance(batch, pa.Table) else pa.table({name: _listed(column) for name, column in batch.items()})
        if self.field not in table.column_names:
            raise InputError(f"the batch has no column {self.field!r}; it has {', '.join(table.column_names)}.")
        sentences = self._sentences(table.column(self.field).to_pylist())
        arrays = self.elmo.embed(
            sentences, layers=self.layers, pool=self.pool, state=self.state, precision=self.precision, raw=True
        )
        counts = [1 if self.pool is not None else len(tokens) for tokens in sentences]
        found = table.take(np.repeat(np.arange(len(sentences)), counts))
        if self.pool is None:
            positions = np.concatenate([np.zeros(0, np.int32), *(np.arange(count, dtype=np.int32) for count in counts)])
            found = found.append_column("position", pa.array(positions))
            found = found.append_column("token", pa.array([token for tokens in sentences for token in tokens], pa.string()))
        stacked = isinstance(self.layers, str) and self.layers == "all"
        names = self.elmo.layers if stacked else (self._name(),)
        kind = pa.float16() if self.dtype == "float16" else pa.float32()
        for number, name in enumerate(names):
            rows = [array[number] if stacked else array for array in arrays]
            rows = [row[None] for row in rows] if self.pool is not None else rows
            width = rows[0].shape[-1] if rows else self.elmo.dim
            values = np.concatenate([np.zeros((0, width)), *rows]).astype(self.dtype)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), kind), width)
            found = found.append_column(column_of(name), lists)
        return found

    def _sentences(self, values: Sequence[object]) -> list[list[str]]:
        from polyseme.text import tokenizer

        cut = tokenizer(self.elmo.config.tokenization).tokenize
        found = [cut(value) if isinstance(value, str) else value for value in values]
        wrong = [value for value in found if not isinstance(value, list)]
        if wrong:
            raise InputError(f"the column {self.field!r} holds {type(wrong[0]).__name__}; wanted texts or lists of tokens.")
        return [tokens for tokens in found if isinstance(tokens, list)]

    def _name(self) -> str:
        if isinstance(self.layers, str):
            return self.elmo.layers[-1] if self.layers == "top" else self.layers
        return self.elmo.layers[self.layers] if isinstance(self.layers, int) else "mix"


class _MakeParts:
    """Makes the parts of portions inside an actor; rows are portions, and what comes out says what was written."""

    def __init__(self, elmo: Any, model: str, device: str, settings: dict[str, Any], place: Place, threads: int) -> None:
        import ray
        import torch

        torch.set_num_threads(threads)
        self.elmo: Elmo = ray.get(elmo).to(device)
        self.model, self.settings, self.place = model, BulkSettings.from_dict(settings), place

    def __call__(self, batch: "pyarrow.Table") -> "pyarrow.Table":
        import pyarrow as pa

        receipts = []
        for text in batch.column("portion").to_pylist():
            receipt = make_part(self.elmo, self.model, Portion(**json.loads(text)), self.settings, self.place)
            receipts.append(json.dumps(receipt))
        return pa.table({"receipt": receipts})


def _listed(column: Any) -> Any:
    return column.tolist() if hasattr(column, "tolist") else column


def embed_on_ray(
    reader: Reader,
    output: str | Path,
    elmo: Elmo,
    settings: BulkSettings,
    *,
    workers: int = 1,
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """What `embed_corpus` does, with the same files as result, by actors of a Ray cluster.

    The text is read here and goes through Ray's object store; the actors write to `output`, which all of them must reach: an
    object store's URI, or a folder that all machines share. Joins the cluster that runs already (RAY_ADDRESS), else starts
    one on this machine.

    Args:
        reader: the input.
        output: a folder, or the URI of one.
        elmo: the model; it is copied to each actor once. Where it lies on a GPU, each actor takes one.
        settings: see `polyseme.bulk.settings.bulk_settings`.
        workers: how many actors.
        overwrite: delete what the folder holds of stored vectors first.
        report: is told how many tokens are done.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError("Ray is not there; install it: pip install 'polyseme[ray]'.") from error
    if workers < 1:
        raise InputError(f"workers is {workers}; wanted at least 1.")
    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
    place = Place(output if "://" in str(output) else Path(output).absolute())
    advance = adding(report)

    def make(wanted: Iterable[Portion]) -> Iterator[Receipt]:
        for receipt in _made_on_ray(wanted, elmo, settings, place, workers):
            advance(receipt["tokens"])
            yield receipt

    with place.held():
        return complete(reader, place, elmo, settings, make, overwrite=overwrite, advance=advance)


def _made_on_ray(wanted: Iterable[Portion], elmo: Elmo, settings: BulkSettings, place: Place, workers: int) -> Iterator[Receipt]:
    import pyarrow as pa
    import ray

    device = elmo.device.type
    held = ray.put(_without_softmax(elmo))
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)) // workers)
    for wave in _waves(wanted):
        refs = [ray.put(pa.table({"portion": [text]})) for text in wave]
        parts = ray.data.from_arrow_refs(refs).map_batches(  # pyrefly: ignore
            _MakeParts,  # pyrefly: ignore
            fn_constructor_args=(held, elmo.hash, device, settings.to_dict(), place, cores),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=cores,
            num_gpus=1 if device == "cuda" else 0,
            concurrency=workers,
        )
        del refs
        for row in parts.iter_rows():
            yield json.loads(row["receipt"])


def _waves(wanted: Iterable[Portion]) -> Iterator[list[str]]:
    """Portions as JSON, as many as may wait together."""
    wave: list[str] = []
    letters = 0
    for portion in wanted:
        wave.append(json.dumps(asdict(portion)))
        letters += len(wave[-1])
        if letters >= _WAVE:
            yield wave
            wave, letters = [], 0
    if wave:
        yield wave


def _without_softmax(elmo: Elmo) -> Elmo:
    """The same model on the CPU without what vectors do not need."""
    from dataclasses import replace

    whole = checkpoint_of(elmo)
    tensors = {name: tensor for name, tensor in whole.tensors.items() if not name.startswith("softmax.")}
    config = replace(whole.config, vocabulary_size=None, tied_softmax=False)
    return elmo_of(replace(whole, config=config, tensors=tensors, vocabulary=None), name=elmo.name)
