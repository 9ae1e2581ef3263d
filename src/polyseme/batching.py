"""From ids to layers over the reference model: sentences sorted by length into padded batches of bounded size.

What engine.py does faster, and what the tests hold it to.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from polyseme.characters import Words
from polyseme.lstm import LSTMState
from polyseme.model import BiLM

#: Words that go through the character network together; its activations are the widest of the whole model.
WORD_BLOCK = 256
#: The fixed point of the empty sentence: no entry moves by more than this, or so many sentences were read.
WARM_TOLERANCE, WARM_LIMIT = 1e-6, 1000


# As a decorator: a `with` in a generator would stay in force in the caller between two results.
@torch.inference_mode()
def encode(
    model: BiLM,
    words: Words,
    index: Sequence[Sequence[int]],
    state: LSTMState,
    *,
    layers: Sequence[int],
    batch_tokens: int,
    carry: bool = False,
) -> Iterator[tuple[int, list[Float[Tensor, "tokens width"]]]]:
    """The wanted layers of every sentence, as (number of the sentence, layers) pairs in no promised order.

    Args:
        model: the network; it decides device and precision.
        words: the distinct words, on the model's device.
        index: each sentence as positions in `words`, markers included.
        state: one row from which every sentence starts, or, with `carry`, one row for each sentence.
        layers: numbers of the layers wanted, 0 for the token vectors; each is yielded in float32 on the CPU.
        batch_tokens: no more tokens than this, padding included, are held at once; a longer sentence is read in pieces
            of this size, which changes nothing in its vectors.
        carry: whether `state` is replaced, in place, by the state after each row's sentence.
    """
    device = _device(model).type
    with torch.autocast(device, enabled=False):
        vectors = _token_vectors(model, words)
    for rows in token_batches([len(sentence) for sentence in index], batch_tokens):
        sentences = [index[row] for row in rows]
        start = LSTMState(h=state.h[:, rows], c=state.c[:, rows]) if carry else state.expand(len(rows))
        start = LSTMState(h=start.h.to(vectors), c=start.c.to(vectors))
        # Reduced precision is asked for by a model of that type, never by what surrounds the call.
        with torch.autocast(device, enabled=False):
            if len(sentences[0]) > batch_tokens and (carry or any(layers)):
                found, end = _in_pieces(model, vectors, sentences[0], start, layers=layers, piece=batch_tokens)
                results = [found]
            else:
                batch, end = _together(model, vectors, sentences, start, layers=layers, run=carry)
                results = [[layer[number, : len(sentence)] for layer in batch] for number, sentence in enumerate(sentences)]
        if carry:
            state.h[:, rows] = end.h.to(state.h)
            state.c[:, rows] = end.c.to(state.c)
        yield from zip(rows, results, strict=True)


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Groups of sentence numbers, the longest sentences first, whose padded size stays within the budget where it can."""
    rows: list[int] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and longest * (len(rows) + 1) > batch_tokens:
            yield rows
            rows = []
        if not rows:
            longest = lengths[row]
        rows.append(row)
    if rows:
        yield rows


def warm_state(model: BiLM, markers: Words) -> LSTMState:
    """The state every sentence starts from by default: from zero, the empty sentence again and again until nothing moves.

    Args:
        model: the network in float32.
        markers: the begin and the end of a sentence as two words, on the model's device.
    """
    device = _device(model)
    state = LSTMState.zeros(model.config.lstm, 1, device=device)
    if model.config.warm == "zero":
        return state
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        vectors, lengths = model.token_encoder(markers)[None], torch.tensor([2], device=device)
        for _ in range(WARM_LIMIT):
            _, after = model.lstm(vectors, lengths, state)
            moved = max(float((after.h - state.h).abs().max()), float((after.c - state.c).abs().max()))
            state = after
            if moved <= WARM_TOLERANCE:
                break
    return state


def _device(model: BiLM) -> torch.device:
    return model.lstm.stack("forward")[0].bias.device


def _token_vectors(model: BiLM, words: Words) -> Float[Tensor, "words width"]:
    blocks = []
    for start in range(0, len(words), WORD_BLOCK):
        block = slice(start, start + WORD_BLOCK)
        characters = None if words.characters is None else words.characters[block]
        blocks.append(model.token_encoder(Words(characters=characters, ids=None if words.ids is None else words.ids[block])))
    return torch.cat(blocks)


def _together(
    model: BiLM, vectors: Tensor, index: Sequence[Sequence[int]], state: LSTMState, *, layers: Sequence[int], run: bool
) -> tuple[list[Float[Tensor, "rows time width"]], LSTMState]:
    """One padded batch; the LSTM is left out where neither its layers nor its state are wanted."""
    longest = len(index[0])
    padded = torch.tensor([[*row, *[row[0]] * (longest - len(row))] for row in index], device=vectors.device)
    lengths = torch.tensor([len(row) for row in index], device=vectors.device)
    x = vectors[padded]
    contextual: list[Tensor] = []
    if run or any(layers):
        contextual, state = model.lstm(x, lengths, state)
    token = torch.cat([x] * len(model.config.lstm.directions), dim=2)
    return [_out(token if layer == 0 else contextual[layer - 1]) for layer in layers], state


def _in_pieces(
    model: BiLM, vectors: Tensor, sentence: Sequence[int], state: LSTMState, *, layers: Sequence[int], piece: int
) -> tuple[list[Float[Tensor, "tokens width"]], LSTMState]:
    """One long sentence: forward from the left with the state carried along, backward from the right."""
    config = model.config
    found = [torch.empty(len(sentence), config.layer_dims[layer], dtype=torch.float32, device="cpu") for layer in layers]
    starts = range(0, len(sentence), piece)
    final_h, final_c = [], []
    for number, direction in enumerate(config.lstm.directions):
        h, c = model.lstm.part(state, number)
        for start in starts if direction == "forward" else reversed(starts):
            part = slice(start, min(start + piece, len(sentence)))
            x = vectors[torch.tensor(sentence[part], device=vectors.device)][None]
            read = x if direction == "forward" else x.flip(1)
            hidden, h, c = model.lstm.read(direction, read, read.new_ones(1, read.shape[1], dtype=torch.bool), h, c)
            for layer, target in zip(layers, found, strict=True):
                value = x if layer == 0 else hidden[layer - 1] if direction == "forward" else hidden[layer - 1].flip(1)
                width = value.shape[2]
                target[part, number * width : (number + 1) * width] = _out(value[0])
        final_h.append(h)
        final_c.append(c)
    return found, LSTMState(h=torch.cat(final_h, dim=2), c=torch.cat(final_c, dim=2))


def _out(x: Tensor) -> Tensor:
    return x.to("cpu", torch.float32)
