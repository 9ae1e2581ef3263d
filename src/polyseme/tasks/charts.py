"""How much each layer of the biLM counts in a fitted task model, as a bar chart."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from polyseme.errors import InputError
from polyseme.tasks.trained import write_beside


def write_layer_chart(weights: Mapping[str, Mapping[str, Sequence[float]]], path: str | Path) -> None:
    """Draws the layers' shares of each task and place into a PNG.

    Args:
        weights: for each task the `layer_weights` of its fitted models: for each place the shares and, last, gamma.
        path: where the picture is written; its name ends in .png.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InputError("a chart needs matplotlib, which is not installed: pip install 'polyseme[charts]'.") from error
    path = Path(path)
    if path.suffix != ".png":
        raise InputError(f"the chart is to be written to {path}; wanted a name that ends in .png.")
    bars = [(f"{task}\n{place}", shares[:-1]) for task, places in weights.items() for place, shares in places.items()]
    if not bars:
        raise InputError("there are no layer weights to draw: the task model has no ELMo.")
    figure = Figure(figsize=(1.5 + 1.3 * len(bars), 3.2), layout="constrained")
    axes = figure.subplots()
    count = len(bars[0][1])
    for layer in range(count):
        places = [number + (layer - (count - 1) / 2) * 0.8 / count for number in range(len(bars))]
        axes.bar(
            places, [shares[layer] for _, shares in bars], width=0.8 / count, label="token" if layer == 0 else f"lstm{layer}"
        )
    axes.axhline(1 / count, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylabel("share in the mix")
    axes.set_ylim(0, 1)
    axes.legend(ncols=count, frameon=False)
    write_beside(path, lambda beside: figure.savefig(beside, dpi=150, format="png"))
