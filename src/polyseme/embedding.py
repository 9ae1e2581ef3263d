"""ElmoEmbedding: the torch module that task models and users' own networks put in front."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyseme.characters import Words
from polyseme.elmo import Elmo, TokenIds
from polyseme.errors import InputError, WeightsError
from polyseme.lstm import LSTMState
from polyseme.mix import LayerNorm, Mix, ScalarMix
from polyseme.model import share
from polyseme.stored_embedding import StoredEmbedding, mixed


class ParameterGroup(TypedDict):
    """What a torch optimizer takes."""

    params: list[nn.Parameter]
    lr: float
    weight_decay: float


class ElmoEmbedding(nn.Module):
    """The biLM under one or more learned mixes of its layers.

    The module shares the memory of its Elmo until a part of the biLM is trained; that part is copied first, so the Elmo
    never changes. `state_dict()` holds what was trained, and the name and hash of the biLM instead of the rest.

    Args:
        elmo: the model in front of which the mixes stand.
        outputs: how many mixes; `forward` gives one tensor for each.
        dropout: on each mixed output.
        layer_norm: None, "token", "allennlp" or "bilm_tf"; see ScalarMix.
        trainable: "mix" learns the mixes over a frozen biLM, True also the biLM, False nothing.
        state: where each sentence starts, "warm" or "zero". The warm state is that of the Elmo given and stays
            constant while the biLM is trained.
        boundaries: keep the vectors of the two sentence markers.
        token_layer: for models whose token vectors are not as wide as their LSTM layers: "drop" leaves them out of the
            mix, "project" learns a linear map to the others' width. "keep" mixes them as they are.
        mixes: where the mixes start, one for each output, such as `elmo.mixes`; even weights and gamma 1 by default.
    """

    def __init__(
        self,
        elmo: Elmo,
        *,
        outputs: int = 1,
        dropout: float = 0.5,
        layer_norm: LayerNorm | None = None,
        trainable: Literal["mix"] | bool = "mix",
        state: Literal["warm", "zero"] = "warm",
        boundaries: bool = False,
        token_layer: Literal["keep", "drop", "project"] = "keep",
        mixes: Sequence[Mix] | None = None,
    ) -> None:
        super().__init__()
        _check(elmo, outputs, dropout, trainable, state, token_layer, mixes)
        config = elmo.config
        self.elmo = elmo
        self.boundaries = boundaries
        self.token_layer = token_layer
        self.bilm = share(elmo.model)
        self.bilm.softmax = None
        self._own: set[str] = set()
        count = len(elmo.layers) - (token_layer == "drop")
        starts = [None] * outputs if mixes is None else list(mixes)
        self.mixes = nn.ModuleList(
            ScalarMix(
                count,
                layer_norm=layer_norm,
                weights=None if start is None else start.weights,
                gamma=1.0 if start is None else start.gamma,
                trainable=trainable is not False,
            )
            for start in starts
        )
        self.dropout = nn.Dropout(dropout)
        self.token_projection = None
        if token_layer == "project":
            self.token_projection = nn.Linear(config.layer_dims[0], config.dim, bias=False)
            # Each half starts as the first entries of the token vector: no random numbers, whoever builds it.
            halves = [torch.eye(config.lstm.width, config.token_width)] * len(config.lstm.directions)
            self.token_projection.weight = nn.Parameter(torch.block_diag(*halves), requires_grad=trainable is not False)
        start = elmo.warm() if state == "warm" else elmo.state(1)
        self.register_buffer("start_h", start.h, persistent=False)
        self.register_buffer("start_c", start.c, persistent=False)
        self.register_state_dict_post_hook(_leave_out_what_was_not_trained)
        self.register_load_state_dict_pre_hook(_fill_in_what_was_not_trained)
        if trainable is True:
            self.unfreeze(*elmo.layers)

    @staticmethod
    def from_vectors(
        path: str | Path,
        *,
        outputs: int = 1,
        dropout: float = 0.5,
        layer_norm: LayerNorm | None = None,
        trainable: Literal["mix", False] = "mix",
        boundaries: bool = False,
        token_layer: Literal["keep", "drop"] = "keep",
        mixes: Sequence[Mix] | None = None,
    ) -> StoredEmbedding:
        """The same mixes over stored layers, where the biLM stays frozen: called with numbers of sentences instead of ids.

        Args:
            path: what `polyseme embed --layers all -o DIR` wrote; with `--dtype float32` results are those over the biLM.
            outputs: as for the class, like all that follows; the state is the one the layers were stored with.
            dropout: on each mixed output.
            layer_norm: "allennlp" counts the sentence markers: store them too (`--boundaries`).
            trainable: "mix" or False.
            boundaries: keep the vectors of the two sentence markers; store them too.
            token_layer: "keep" or "drop".
            mixes: where the mixes start.
        """
        return StoredEmbedding(
            path,
            outputs=outputs,
            dropout=dropout,
            layer_norm=layer_norm,
            trainable=trainable,
            boundaries=boundaries,
            token_layer=token_layer,
            mixes=mixes,
        )

    @property
    def dim(self) -> int:
        """The width of an output."""
        return self.elmo.dim

    def forward(self, ids: TokenIds) -> tuple[list[Float[Tensor, "sentences tokens width"]], Bool[Tensor, "sentences tokens"]]:
        """The mixed vectors of every output, zero at padding, and the mask of the tokens.

        Args:
            ids: what `elmo.characters(sentences)` gives, on any device.
        """
        if not isinstance(ids, TokenIds):
            raise InputError(f"ids is of type {type(ids).__name__}; wanted what elmo.characters(sentences) gives.")
        ids = ids.to(self.start_h.device)
        sentences = len(ids.lengths)
        if sentences == 0:
            empty = self.start_h.new_zeros(0, 0, self.dim)
            return [empty for _ in self.mixes], empty.new_zeros(0, 0, dtype=torch.bool)
        state = LSTMState(h=self.start_h.expand(-1, sentences, -1), c=self.start_c.expand(-1, sentences, -1))
        layers, _ = self.read(ids, state)
        return self.mix(layers, ids.lengths)

    def read(self, ids: TokenIds, state: LSTMState) -> tuple[list[Float[Tensor, "sentences tokens _"]], LSTMState]:
        """The biLM's layers, markers included, and the state after each sentence, from a state of one row a sentence."""
        self._own_what_is_trained()
        words = Words(characters=ids.characters, ids=ids.words)
        if self._as_given():
            return self.elmo.engine().forward(words, ids.index, ids.lengths, state)
        learning = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.bilm.parameters())
        with torch.set_grad_enabled(learning):
            return self.bilm(words, ids.index, ids.lengths, state)

    def _as_given(self) -> bool:
        """Whether the biLM is still the Elmo's, in the same place and precision: what the Elmo computes with will do."""
        start = self.start_h
        return not self._own and start.device == self.elmo.device and start.dtype == torch.float32

    def mix(
        self, layers: list[Float[Tensor, "sentences tokens _"]], lengths: Int[Tensor, "sentences"]
    ) -> tuple[list[Float[Tensor, "sentences kept width"]], Bool[Tensor, "sentences kept"]]:
        """The mixed vectors of every output from the biLM's layers and lengths, both with markers; and the mask."""
        if self.token_projection is not None:
            layers = [self.token_projection(layers[0]), *layers[1:]]
        elif self.token_layer == "drop":
            layers = layers[1:]
        return mixed(list(self._scalar_mixes()), layers, lengths, self.dropout, boundaries=self.boundaries)

    def freeze(self, *layers: str) -> None:
        """Trains these layers no longer: "token", "lstm1", ..., or "mix"; without names, every layer of the biLM."""
        for parameter in self._parameters_of(layers):
            parameter.requires_grad_(False)

    def unfreeze(self, *layers: str) -> None:
        """Trains these layers from now on: "token", "lstm1", ..., or "mix"; without names, every layer of the biLM."""
        for parameter in self._parameters_of(layers):
            parameter.requires_grad_(True)
        self._own_what_is_trained()

    def parameter_groups(self, *, lr: float, bilm_lr: float) -> list[ParameterGroup]:
        """Groups for an optimizer: the mixes at `lr`, without weight decay; what is trained of the biLM at `bilm_lr`.

        A pre-trained model wants a smaller rate than what is learned anew, a tenth or less. For a penalty on the mixes'
        weights add `penalty` to the loss: weight decay would pull on gamma too.
        """
        bilm = [parameter for parameter in self.bilm.parameters() if parameter.requires_grad]
        known = {id(parameter) for parameter in self.bilm.parameters()}
        rest = [parameter for parameter in self.parameters() if parameter.requires_grad and id(parameter) not in known]
        groups = [ParameterGroup(params=rest, lr=lr, weight_decay=0.0), ParameterGroup(params=bilm, lr=bilm_lr, weight_decay=0.0)]
        return [group for group in groups if group["params"]]

    def penalty(self, coefficient: float) -> Float[Tensor, ""]:
        """The L2 term to add to a task's loss: coefficient * the sum of squares of all mix weights before the softmax."""
        return torch.stack([mix.l2(coefficient) for mix in self._scalar_mixes()]).sum()

    def tuned(self) -> Elmo:
        """An Elmo with the weights and mixes as they are now; its warm state is that of the new weights."""
        model = share(self.elmo.model)
        trained = dict(self.bilm.named_parameters())
        for name, parameter in model.named_parameters():
            if name in self._own:
                parameter.data = trained[name].detach().to(parameter, copy=True)
        mixes = [Mix(weights=tuple(mix.weights.tolist()), gamma=mix.gamma.item()) for mix in self._scalar_mixes()]
        return Elmo(
            model,
            self.elmo.reader,
            vocabulary=self.elmo.vocabulary,
            mixes=mixes if self.token_layer == "keep" else (),
            name=self.elmo.name,
        )

    def get_extra_state(self) -> Tensor:
        """The reference to the biLM, JSON in a tensor, so that formats of tensors alone can hold it."""
        text = json.dumps({"name": self.elmo.name, "hash": self.elmo.hash})
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Makes sure that a state dict belongs to this biLM."""
        reference = json.loads(bytes(state.tolist()))
        if reference["hash"] != self.elmo.hash:
            raise WeightsError(
                f"these weights were trained over the biLM {reference['name']!r} (hash {reference['hash'][:12]}), but this "
                f"module stands over {self.elmo.name!r} (hash {self.elmo.hash[:12]}); build it over the former."
            )

    def _scalar_mixes(self) -> Iterator[ScalarMix]:
        return (mix for mix in self.mixes if isinstance(mix, ScalarMix))

    def _parameters_of(self, layers: Sequence[str]) -> Iterator[nn.Parameter]:
        names = self.elmo.layers
        for layer in layers or names:
            if layer == "token":
                yield from self.bilm.token_encoder.parameters()
            elif layer in names:
                for direction in self.elmo.config.lstm.directions:
                    yield from self.bilm.lstm.stack(direction)[names.index(layer) - 1].parameters()
            elif layer == "mix":
                yield from self.mixes.parameters()
                if self.token_projection is not None:
                    yield from self.token_projection.parameters()
            else:
                raise InputError(f"there is no layer {layer!r}; this module has {', '.join(names)} and mix.")

    def _own_what_is_trained(self) -> None:
        """Copies what is about to be trained, however it was unfrozen, out of the memory shared with the Elmo."""
        for name, parameter in self.bilm.named_parameters():
            if parameter.requires_grad and name not in self._own:
                self.own(name, parameter)

    def own(self, name: str, parameter: nn.Parameter) -> None:
        """Gives one parameter of the biLM memory of its own; from now on it belongs to the state dict."""
        parameter.data = parameter.data.clone()
        self._own.add(name)


def _leave_out_what_was_not_trained(
    module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: dict[str, object]
) -> None:
    assert isinstance(module, ElmoEmbedding)
    module._own_what_is_trained()
    for name, _ in module.bilm.named_parameters():
        if name not in module._own:
            del state[f"{prefix}bilm.{name}"]


def _fill_in_what_was_not_trained(
    module: nn.Module,
    state: dict[str, Tensor],
    prefix: str,
    metadata: dict[str, object],
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """What a state dict leaves out was not trained: it is the Elmo's. What it holds gets memory of its own first."""
    assert isinstance(module, ElmoEmbedding)
    original = dict(module.elmo.model.named_parameters())
    for name, parameter in module.bilm.named_parameters():
        key = f"{prefix}bilm.{name}"
        if key not in state:
            # A copy where this module trains: with assign=True the tensor itself becomes the parameter.
            state[key] = original[name].detach().to(parameter, copy=True) if name in module._own else parameter.detach()
        elif name not in module._own:
            module.own(name, parameter)


def _check(
    elmo: object,
    outputs: object,
    dropout: object,
    trainable: object,
    state: object,
    token_layer: object,
    mixes: Sequence[Mix] | None,
) -> None:
    if not isinstance(elmo, Elmo):
        raise InputError(f"elmo is of type {type(elmo).__name__}; wanted what polyseme.load gives.")
    if isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1:
        raise InputError(f"outputs is {outputs!r}; wanted at least 1.")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
        raise InputError(f"dropout is {dropout!r}; wanted a number from 0 to 1.")
    if trainable not in ("mix", True, False):
        raise InputError(f"trainable is {trainable!r}; wanted 'mix', True or False.")
    if state not in ("warm", "zero"):
        raise InputError(f"state is {state!r}; wanted 'warm' or 'zero'.")
    if token_layer not in ("keep", "drop", "project"):
        raise InputError(f"token_layer is {token_layer!r}; wanted 'keep', 'drop' or 'project'.")
    if mixes is not None and len(mixes) != outputs:
        raise InputError(f"{len(mixes)} mixes were given for {outputs} outputs; give one for each.")
    token, contextual = elmo.config.layer_dims[:2]
    if token_layer == "keep" and token != contextual:
        raise InputError(
            f"the token vectors of this model are {token} wide, its LSTM layers {contextual}, so they cannot be mixed: "
            "give token_layer='drop' to leave them out or token_layer='project' to learn a map."
        )
