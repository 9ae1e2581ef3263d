"""options.json + HDF5: round trips to the bit, every historical spelling, and every kind of damage."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from parity import Reference
from polyseme.config import BiLMConfig, CharacterConfig, LSTMConfig
from polyseme.errors import WeightsError
from polyseme.vocabulary import Vocabulary
from polyseme.weights import Checkpoint, checkpoint_hash, convert, read, write, write_native
from tiny import WORDS, random_model

FIXTURES = Path(__file__).resolve().parent.parent / "golden" / "public_fixtures"
CONFIGS = {
    "usual": {},
    "tanh, one layer, no clips": {"activation": "tanh", "layers": 1, "cell_clip": None, "projection_clip": None},
    "three layers, not residual, two highways": {"layers": 3, "residual": False, "highways": 2},
    "no highway": {"highways": 0},
    "no token projection": {"projection": None, "width": 20},
    "no LSTM projection": {"lstm_projection": None, "dim": 8},
    "forward only": {"bidirectional": False},
    "forward only, one layer": {"bidirectional": False, "layers": 1},
    "24 characters": {"max_characters": 24},
    "a projection of equal width": {"dim": 8},
}


def _config(
    *, activation="relu", layers=2, cell_clip=3.0, projection_clip=2.5, residual=True, highways=1, projection=8, width=8,
    lstm_projection=8, dim=12, bidirectional=True, max_characters=50,
) -> BiLMConfig:  # fmt: skip
    return BiLMConfig(
        characters=CharacterConfig(
            dim=4, filters=((1, 6), (2, 6), (3, 8)), activation=activation, highways=highways, max_characters=max_characters
        ),
        projection=projection,
        lstm=LSTMConfig(
            dim=dim, projection=None if lstm_projection is None else width, layers=layers, residual=residual, cell_clip=cell_clip,
            projection_clip=projection_clip, bidirectional=bidirectional,
        ),
    )  # fmt: skip


def _checkpoint(config: BiLMConfig) -> Checkpoint:
    return Checkpoint(config=config, tensors={name: p.detach() for name, p in random_model(config).named_parameters()})


@pytest.mark.parametrize("kind", CONFIGS)
def test_native_to_hdf5_to_native_is_the_same_to_the_bit(kind: str, tmp_path: Path):
    checkpoint = _checkpoint(_config(**CONFIGS[kind]))
    write_native(checkpoint, tmp_path / "one")
    convert(tmp_path / "one", tmp_path / "two_weights.hdf5")
    convert(tmp_path / "two_weights.hdf5", tmp_path / "three")
    found = read(tmp_path / "three")
    assert found.config == checkpoint.config
    assert all(torch.equal(found.tensors[name], checkpoint.tensors[name]) for name in checkpoint.tensors)
    assert checkpoint_hash(found) == checkpoint_hash(checkpoint)
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (tmp_path / "three" / "model.safetensors").read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one", "three", "two_options.json", "two_weights.hdf5"]


def _dataset_names(file: h5py.File) -> list[str]:
    names = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return sorted(names)


def test_what_we_write_has_the_original_s_names_shapes_and_values(golden: Path, tmp_path: Path):
    """A file of bilm-tf's own, through our tensors and back: the same datasets, bit by bit."""
    for source in (FIXTURES / "bilm_tf" / "lm_weights.hdf5", golden / "tf_checkpoint" / "full" / "dumped_weights.hdf5"):
        write(read(source), tmp_path / "weights.hdf5")
        with h5py.File(source) as theirs, h5py.File(tmp_path / "weights.hdf5") as ours:
            names = _dataset_names(theirs)
            assert _dataset_names(ours) == names
            for name in names:
                assert ours[name].dtype == theirs[name].dtype == np.float32
                np.testing.assert_array_equal(ours[name][...], theirs[name][...])
    options = json.loads((tmp_path / "options.json").read_text())
    theirs = json.loads((golden / "tf_checkpoint" / "full" / "options_inference.json").read_text())
    assert options == {key: theirs[key] for key in ("lstm", "char_cnn")}  # the others are about training


def test_a_stored_forget_bias_is_taken_out(golden: Path, tmp_path: Path):
    """AllenNLP's state dicts hold the forget gate's 1 in the bias; the HDF5 layout does not."""
    checkpoint = read(golden / "allennlp_th" / "elmo.th")
    write(checkpoint, tmp_path / "weights.hdf5")
    found = read(tmp_path / "weights.hdf5")
    assert (checkpoint.config.lstm.forget_bias, found.config.lstm.forget_bias) == (0.0, 1.0)
    sentence = ["The", "cat", "sat"]
    assert np.abs(Reference(found).zero(sentence) - Reference(checkpoint).zero(sentence)).max() < 1e-6
    again = tmp_path / "again.hdf5"
    write(found, again)
    assert checkpoint_hash(read(again)) == checkpoint_hash(found)


def test_a_model_of_words(words_only: Checkpoint, tmp_path: Path):
    write(words_only, tmp_path / "x_weights.hdf5")
    found = read(tmp_path / "x_weights.hdf5")
    assert found.lexicon == words_only.lexicon
    assert found.config == replace(words_only.config, vocabulary_size=None, tied_softmax=False)
    assert torch.equal(found.tensors["token_encoder.words"], words_only.tensors["token_encoder.words"])
    with pytest.raises(WeightsError, match="white space"):
        write(replace(words_only, lexicon=Vocabulary((*WORDS[:-1], "\u3000"))), tmp_path / "y.hdf5")
    assert len(list(tmp_path.iterdir())) == 3


def test_the_softmax_is_left_out(with_softmax: Checkpoint, tmp_path: Path):
    write(with_softmax, tmp_path / "weights.hdf5")
    assert read(tmp_path / "weights.hdf5").config.vocabulary_size is None


def test_models_the_layout_cannot_hold(lexicon: Checkpoint, seed_shaped: Checkpoint, tmp_path: Path):
    for checkpoint, reason in ((lexicon, "spells words by a character list"), (seed_shaped, "joins word and character vectors")):
        with pytest.raises(WeightsError, match=reason):
            write(checkpoint, tmp_path / "weights.hdf5")
    wide = _checkpoint(replace(_config(), projection=10))
    with pytest.raises(WeightsError, match="feeds vectors of width 10 to layers of width 8"):
        write(wide, tmp_path / "weights.hdf5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("zero_first", [True, False])
def test_262_rows(small: Checkpoint, tmp_path: Path, zero_first: bool):
    write(small, tmp_path / "weights.hdf5")
    with h5py.File(tmp_path / "weights.hdf5", "a") as file:
        table = file["char_embed"][...]
        del file["char_embed"]
        extra = np.zeros_like(table[:1]) if zero_first else np.ones_like(table[:1])
        file["char_embed"] = np.concatenate([extra, table] if zero_first else [table, extra])
    assert checkpoint_hash(read(tmp_path / "weights.hdf5")) == checkpoint_hash(small)


def test_other_number_types(small: Checkpoint, tmp_path: Path):
    write(small, tmp_path / "weights.hdf5")
    with h5py.File(tmp_path / "weights.hdf5", "a") as file:
        for name, kind in (("char_embed", np.float64), ("CNN_proj/b_proj", np.float16)):
            values = file[name][...].astype(kind)
            del file[name]
            file[name] = values
    found = read(tmp_path / "weights.hdf5")
    assert torch.equal(found.tensors["token_encoder.characters.embedding"], small.tensors["token_encoder.characters.embedding"])
    with h5py.File(tmp_path / "weights.hdf5", "a") as file:
        del file["CNN_proj/b_proj"]
        file["CNN_proj/b_proj"] = np.zeros(8, np.int32)
    with pytest.raises(WeightsError, match=r"CNN_proj/b_proj holds int32; wanted floating-point"):
        read(tmp_path / "weights.hdf5")


def test_training_options_are_known(golden: Path):
    folder = golden / "tf_checkpoint" / "full"
    options = [read(folder / "dumped_weights.hdf5", options=folder / f"options{kind}.json") for kind in ("", "_inference")]
    assert checkpoint_hash(options[0]) == checkpoint_hash(options[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o.update(colour="red"), "options has colour, which is not known; known are lstm"),
        (lambda o: o["lstm"].update(dimension=3), r"options\.lstm has dimension"),
        (lambda o: o["char_cnn"].update(n_high=3), r"options\.char_cnn has n_high"),
        (lambda o: o["char_cnn"]["embedding"].update(size=3), r"options\.char_cnn\.embedding has size"),
        (lambda o: o.pop("lstm"), "lacks lstm"),
        (lambda o: o["lstm"].pop("dim"), "lacks dim"),
        (lambda o: o["char_cnn"].pop("filters"), "lacks filters"),
        (lambda o: o["char_cnn"].update(filters=[1, 2]), "cannot be used"),
        (lambda o: o["char_cnn"].update(activation="gelu"), "activation is 'gelu'"),
        (lambda o: o["lstm"].update(dim="wide"), "dim is 'wide'"),
        (lambda o: o["lstm"].update(n_layers=9), "layers is 9; wanted 1 to 8"),
        (lambda o: o["lstm"].update(dim=13), r"has shape \(12, 8\), but its configuration asks for \(13, 8\)|has shape"),
        (lambda o: o["lstm"].update(n_layers=1), "also holds RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B"),
        (lambda o: o["lstm"].update(n_layers=3), "lacks RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0"),
        (lambda o: o["char_cnn"].update(n_highway=2), "lacks CNN_high_1/W_carry"),
        (lambda o: o.pop("char_cnn"), "no char_cnn, so tokens are looked up in an embedding, but none is there"),
        (lambda o: o.update(lstm=[]), r"options\.lstm is \[\]"),
    ],
)
def test_options_that_do_not_fit(small: Checkpoint, tmp_path: Path, change, message: str):
    write(small, tmp_path / "weights.hdf5")
    options = json.loads((tmp_path / "options.json").read_text())
    change(options)
    (tmp_path / "options.json").write_text(json.dumps(options))
    with pytest.raises(WeightsError, match=message):
        read(tmp_path / "weights.hdf5")


def test_options_that_are_no_json(small: Checkpoint, tmp_path: Path):
    write(small, tmp_path / "weights.hdf5")
    for content, message in ((b"{", "not valid JSON"), (b"\xff\xfe", "not valid JSON"), (b"[]", "wanted a JSON object")):
        (tmp_path / "options.json").write_bytes(content)
        with pytest.raises(WeightsError, match=message):
            read(tmp_path / "weights.hdf5")


def test_every_truncation(small: Checkpoint, tmp_path: Path):
    write(small, tmp_path / "weights.hdf5")
    content = (tmp_path / "weights.hdf5").read_bytes()
    for size in range(0, len(content), len(content) // 40):
        (tmp_path / "weights.hdf5").write_bytes(content[:size])
        with pytest.raises(WeightsError, match="damaged or incomplete"):
            read(tmp_path / "weights.hdf5")


def test_missing_misshapen_foreign_and_broken_datasets(small: Checkpoint, tmp_path: Path):
    name = "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/B"

    def broken(change) -> Path:
        write(small, tmp_path / "weights.hdf5")
        with h5py.File(tmp_path / "weights.hdf5", "a") as file:
            change(file)
        return tmp_path / "weights.hdf5"

    def replace_by(values: np.ndarray):
        def change(file: h5py.File) -> None:
            del file[name]
            file[name] = values

        return change

    def remove(file: h5py.File) -> None:
        del file[name]

    def point_elsewhere(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, (48,), np.float32, external=[(str(tmp_path / "secret"), 0, 192)])

    (tmp_path / "secret").write_bytes(bytes(192))
    cases = [
        (remove, f"lacks {name}"),
        (replace_by(np.zeros(47, np.float32)), rf"{name} has shape \(47,\)"),
        (replace_by(np.full(48, np.nan, np.float32)), "backward_layers.0.bias holds values that are infinite or no numbers"),
        (lambda file: file.create_dataset("colour", data=1.0), "holds colour, which is no weight of a biLM"),
        (point_elsewhere, "lies in another file"),
    ]
    for change, message in cases:
        with pytest.raises(WeightsError, match=message):
            read(broken(change))


def test_a_gigabyte_of_zeros_in_a_small_file(tmp_path: Path):
    options = {"lstm": {"dim": 8, "projection_dim": 8, "n_layers": 1}}
    (tmp_path / "options.json").write_text(json.dumps(options))
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        file.create_dataset("embedding", (1 << 25, 8), np.float32)  # 1 GiB that takes no room in the file
        file["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"] = np.zeros((16, 32), np.float32)
        file["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"] = np.zeros(32, np.float32)
    assert (tmp_path / "weights.hdf5").stat().st_size < 20_000
    with pytest.raises(WeightsError, match="would grow from 0 to 1,073,741,824 bytes"):
        read(tmp_path / "weights.hdf5")


def test_options_are_found_by_their_stem(small: Checkpoint, words_only: Checkpoint, tmp_path: Path):
    write(small, tmp_path / "a_weights.hdf5")
    write(words_only, tmp_path / "b_weights.hdf5")
    write(small, tmp_path / "weights.hdf5")
    assert read(tmp_path / "a_weights.hdf5").config == small.config
    assert read(tmp_path / "b_weights.hdf5").config.characters is None
    shutil.copy(tmp_path / "a_weights.hdf5", tmp_path / "a_weights_PubMed_only.hdf5")  # the name of a published file
    (tmp_path / "options.json").rename(tmp_path / "aside")
    assert read(tmp_path / "a_weights_PubMed_only.hdf5").config == small.config
    (tmp_path / "a_weights_PubMed_only.hdf5").unlink()
    (tmp_path / "aside").rename(tmp_path / "options.json")
    for name in ("a_options.json", "options.json"):
        (tmp_path / name).unlink()
    shutil.copy(tmp_path / "a_weights.hdf5", tmp_path / "c.hdf5")
    with pytest.raises(WeightsError, match="no char_cnn"):  # only b's options are left, and they are another model's
        read(tmp_path / "c.hdf5")
    (tmp_path / "z_options.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"needs its options, c_options\.json, and the folder holds b_options\.json"):
        read(tmp_path / "c.hdf5")
    with pytest.raises(WeightsError, match="holds 4 models"):
        read(tmp_path)


def test_token_embeddings_that_do_not_fit(golden: Path, tmp_path: Path):
    folder = golden / "bilm_tf" / "token_cached"
    vocabulary = golden / "bilm_tf" / "vocab.txt"
    with pytest.raises(WeightsError, match="wanted one matrix named embedding"):
        read(folder / "weights.hdf5", token_embeddings=folder / "weights.hdf5", vocabulary=vocabulary)
    short = tmp_path / "vocab.txt"
    short.write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(WeightsError, match="word list has 3 lines but the word embedding has"):
        read(folder / "weights.hdf5", token_embeddings=folder / "token_embeddings.hdf5", vocabulary=short)
    without = read(folder / "weights.hdf5", token_embeddings=folder / "token_embeddings.hdf5")
    with pytest.raises(WeightsError, match=r'give it: vocabulary="vocab\.txt"'):
        Reference(without)
