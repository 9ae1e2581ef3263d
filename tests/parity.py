"""The reference forward over whole sentences, for comparing with recorded vectors."""

from collections.abc import Sequence

import numpy as np
import torch

from polyseme.characters import WordReader, distinct
from polyseme.lstm import LSTMState
from polyseme.model import BiLM
from polyseme.weights import Checkpoint, build, reader


class Reference:
    """A checkpoint's model and word reader, run sentence by sentence or batch by batch."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.model: BiLM = build(checkpoint)
        self.reader: WordReader = reader(checkpoint)

    @torch.no_grad()
    def batch(self, sentences: Sequence[Sequence[str]], state: LSTMState) -> tuple[list[np.ndarray], LSTMState]:
        """Layers of each sentence, markers kept, and the state after it."""
        marked = [[self.reader.begin, *sentence, self.reader.end] for sentence in sentences]
        words, index = distinct(marked)
        lengths = torch.tensor([len(sentence) for sentence in marked])
        padded = torch.zeros(len(marked), int(lengths.max()), dtype=torch.long)
        for row, positions in enumerate(index):
            padded[row, : len(positions)] = torch.tensor(positions)
        layers, state = self.model(self.reader.read(words), padded, lengths, state)
        return [np.stack([layer[row, :length].numpy() for layer in layers]) for row, length in enumerate(lengths.tolist())], state

    def zero(self, sentence: Sequence[str]) -> np.ndarray:
        """(layers, tokens + 2, width) from zero state, the sentence alone."""
        return self.batch([sentence], LSTMState.zeros(self.model.config.lstm, 1))[0][0]

    def carry(self, batches: Sequence[Sequence[Sequence[str]]]) -> tuple[list[list[np.ndarray]], LSTMState]:
        """Each batch's sentences, row by row going on from the state that row was left in; and the last state."""
        state = LSTMState.zeros(self.model.config.lstm, max(map(len, batches)))
        results = []
        for batch in batches:
            rows = len(batch)
            layers, new = self.batch(batch, LSTMState(h=state.h[:, :rows], c=state.c[:, :rows]))
            state.h[:, :rows], state.c[:, :rows] = new.h, new.c
            results.append(layers)
        return results, state


def largest_difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """The largest absolute difference, after shapes were found equal."""
    differences = [0.0]
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        differences.append(float(np.abs(a - b).max(initial=0.0)))
    return max(differences)
