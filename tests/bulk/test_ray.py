"""A local Ray with two workers: the same files as without it, also where a worker is killed on the way."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from click.testing import CliRunner
from corpora import corpus, files_of

from polyseme.bulk.run import embed_corpus
from polyseme.bulk.settings import bulk_settings
from polyseme.cli import main
from polyseme.errors import InputError
from polyseme.sources import Reader
from tiny import tiny_elmo

ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'polyseme[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    yield
    ray.shutdown()


def test_a_worker_is_killed_and_the_files_are_the_same(cluster, tmp_path):
    from polyseme.integrations.ray import embed_on_ray

    text = tmp_path / "corpus.txt"
    text.write_text(corpus(3000))
    elmo = tiny_elmo()
    settings = bulk_settings(elmo, tokenized=True, part_tokens=500)
    embed_corpus(Reader([text]), tmp_path / "alone", elmo, settings)
    wanted = files_of(tmp_path / "alone")
    killed = []

    def kill_one() -> None:
        """The process that has a part open, once some parts are whole."""
        out = tmp_path / "ray"
        while not killed:
            open_parts = list((out / ".work").glob("part-*")) if len(list(out.glob("part-*"))) > 5 else []
            if open_parts:
                process = int(open_parts[0].suffix[1:])
                os.kill(process, signal.SIGKILL)
                killed.append(process)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    manifest = embed_on_ray(Reader([text]), tmp_path / "ray", elmo, settings, workers=2)
    killer.join(10)
    assert len(killed) == 1
    assert len(manifest["parts"]) > 50
    assert files_of(tmp_path / "ray") == wanted


def test_from_and_to_uris_and_from_the_command_line(cluster, workshop, monkeypatch):
    monkeypatch.chdir(workshop)
    arguments = ["embed", "-m", "model", "--tokenized", "--part-tokens", "4"]
    result = CliRunner().invoke(main, [*arguments, f"file://{workshop}/*.txt", "-o", f"file://{workshop}/out", "--ray"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, [*arguments, f"file://{workshop}/*.txt", "-o", "plain"])
    assert result.exit_code == 0, result.output
    assert files_of(workshop / "out") == files_of(workshop / "plain")


@pytest.mark.parametrize(
    ("batch_format", "options"),
    [("numpy", {}), ("pyarrow", {"layers": "all", "dtype": "float32"}), ("numpy", {"layers": "mean", "pool": "max"})],
)
def test_the_callable(cluster, workshop, batch_format, options):
    from polyseme.integrations.ray import EmbedBatches

    texts = ["the cat sat", "", "a dog"]
    data = ray.data.from_items([{"id": number, "text": text} for number, text in enumerate(texts)])
    made = data.map_batches(
        EmbedBatches,
        fn_constructor_args=(str(workshop / "model"),),
        fn_constructor_kwargs=options,
        batch_size=2,
        batch_format=batch_format,
        concurrency=1,
    )
    import polyseme

    wanted = polyseme.load(workshop / "model").embed(texts, layers=options.get("layers", "top"), pool=options.get("pool"))
    rows = sorted(made.take_all(), key=lambda row: (row["id"], row.get("position", 0)))
    if "pool" in options:
        assert [row["id"] for row in rows] == [0, 1, 2]
        for row, array in zip(rows, wanted, strict=True):
            np.testing.assert_allclose(row["vector_mean"], array, atol=1e-3)
        return
    assert [(row["id"], row["position"], row["token"]) for row in rows] == [
        (0, 0, "the"),
        (0, 1, "cat"),
        (0, 2, "sat"),
        (2, 0, "a"),
        (2, 1, "dog"),
    ]
    for row in rows:
        array = wanted[row["id"]]
        if "layers" in options:
            for number, layer in enumerate(("token", "lstm1", "lstm2")):
                np.testing.assert_allclose(row[f"vector_{layer}"], array[number, row["position"]], atol=1e-6)
        else:
            np.testing.assert_allclose(row["vector_lstm2"], array[row["position"]], atol=1e-3)


def test_wrong_columns(workshop):
    from polyseme.integrations.ray import EmbedBatches

    embed = EmbedBatches(workshop / "model")
    with pytest.raises(InputError, match="no column 'text'; it has words"):
        embed({"words": np.array(["a b"])})
    with pytest.raises(InputError, match="holds int; wanted texts"):
        embed({"text": np.array([1])})
