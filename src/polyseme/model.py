"""BiLM = token encoder + LSTM stacks (+ softmax): the reference forward, and the initial values of a new model."""

import copy
import hashlib
import json
import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from polyseme.characters import Words
from polyseme.config import BiLMConfig
from polyseme.lstm import BiLSTM, LSTMLayer, LSTMState
from polyseme.softmax import Softmax
from polyseme.token_encoder import Highway, TokenEncoder


class BiLM(nn.Module):
    """The network alone: it reads ids and knows no words. Parameters are zero until initialised or loaded."""

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        self.token_encoder = TokenEncoder(config.characters, config.words, config.projection)
        self.lstm = BiLSTM(config.lstm, config.token_width)
        self.softmax = None
        if config.vocabulary_size is not None:
            self.softmax = Softmax(config.vocabulary_size, config.lstm.width)
            if config.tied_softmax:
                self.softmax.weight = self.token_encoder.words  # pyrefly: ignore

    def forward(
        self, words: Words, index: Int[Tensor, "sentences tokens"], lengths: Int[Tensor, "sentences"], state: LSTMState
    ) -> tuple[list[Float[Tensor, "sentences tokens _"]], LSTMState]:
        """Every layer (the token vector once per direction first), and the state after each sentence.

        `index` holds positions in `words`, markers included; what stands past a sentence's length is not read, and
        all layers are zero there.
        """
        vectors = self.token_encoder(words)[index]
        vectors = vectors * (torch.arange(index.shape[1], device=index.device) < lengths[:, None])[:, :, None]
        contextual, state = self.lstm(vectors, lengths, state)
        return [torch.cat([vectors] * len(self.config.lstm.directions), dim=2), *contextual], state


def initialise(model: BiLM, generator: torch.Generator) -> None:
    """Fills every parameter as bilm-tf does.

    character embedding   U(-1, 1)
    convolutions          relu: U(-0.05, 0.05); tanh: N(0, 1/sqrt(width * dim)); bias 0
    highway               N(0, 1/sqrt(width)); gate bias -2, transform bias 0
    token projection      N(0, 1/sqrt(input)); bias 0
    word embedding        Glorot-uniform
    LSTM                  Glorot-uniform over the joint kernel [input; h]; projection Glorot-uniform; bias 0
    softmax               N(0, 1/sqrt(width)); bias 0 (a tied weight keeps the embedding's values)
    """

    def uniform(parameter: Tensor, bound: float) -> None:
        parameter.uniform_(-bound, bound, generator=generator)

    def normal(parameter: Tensor, deviation: float) -> None:
        parameter.normal_(0.0, deviation, generator=generator)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        encoder = model.token_encoder
        if encoder.words is not None:
            uniform(encoder.words, math.sqrt(6 / sum(encoder.words.shape)))
        if encoder.characters is not None:
            uniform(encoder.characters.embedding, 1.0)
            for convolution in encoder.characters.convolutions:
                assert isinstance(convolution, nn.Conv1d)
                weight = convolution.weight
                if encoder.characters.activation is torch.relu:
                    uniform(weight, 0.05)
                else:
                    normal(weight, 1 / math.sqrt(weight.shape[1] * weight.shape[2]))
            for highway in encoder.characters.highways:
                assert isinstance(highway, Highway)
                normal(highway.transform.weight, 1 / math.sqrt(highway.transform.in_features))
                normal(highway.gate.weight, 1 / math.sqrt(highway.gate.in_features))
                highway.gate.bias.fill_(-2.0)
        if encoder.projection is not None:
            normal(encoder.projection.weight, 1 / math.sqrt(encoder.projection.in_features))
        for layer in model.lstm.modules():
            if isinstance(layer, LSTMLayer):
                inputs = layer.input_weight.shape[1] + layer.recurrent_weight.shape[1]
                bound = math.sqrt(6 / (inputs + layer.bias.shape[0]))
                uniform(layer.input_weight, bound)
                uniform(layer.recurrent_weight, bound)
                if layer.projection_weight is not None:
                    uniform(layer.projection_weight, math.sqrt(6 / sum(layer.projection_weight.shape)))
        if model.softmax is not None and not model.config.tied_softmax:
            normal(model.softmax.weight, 1 / math.sqrt(model.config.lstm.width))


def share(model: BiLM) -> BiLM:
    """A second, frozen model over the same memory: moving or retyping either leaves the other as it is."""
    memory = {id(parameter): nn.Parameter(parameter.detach(), requires_grad=False) for parameter in model.parameters()}
    return copy.deepcopy(model, memory).eval()


def model_hash(config: BiLMConfig, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the configuration and every tensor's native name, shape and float32 bytes: equal on every machine."""
    digest = hashlib.sha256(json.dumps(config.to_dict(), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().astype("<f4", copy=False).reshape(-1).view("u1").data)
    return digest.hexdigest()
