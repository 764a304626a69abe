"""The picture of `mmaemu demo`: where and by how much two GPUs, fp32 and exact sums differ."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from mmaemu.cli.command import NotAvailableError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import SubFigure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

BLUE, PALE, ORANGE, GREEN, GREY = "#0067a5", "#a9cbe6", "#d9541e", "#2a8c4a", "#8a8f98"
INK = "#22262b"
STYLE: Final = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12.0,
    "text.color": INK,
    "axes.edgecolor": "#9aa0a8",
    "axes.labelcolor": INK,
    "axes.titlesize": 12.5,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}
SIZE: Final = (13.0, 8.2)
"""Inches; at 850 pixels wide a 12-point letter is 11 pixels high."""
DPI: Final = 130


def last_kept_bit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The unit of the 13 fraction bits that an FP8 tensor core keeps of each value."""
    _, exponent = np.frexp(values)
    unit: NDArray[np.float64] = np.ldexp(1.0, exponent - 1 - 13)
    return unit


@dataclass(frozen=True, eq=False)
class Scene:
    """What the picture shows.

    Attributes:
        exact: the exact sums, float64 [M, N].
        first: the outputs of the first platform, float64 [M, N].
        second: the outputs of the second platform.
        fp32: the IEEE fp32 sums.
        names: names of the two platforms.
        differing: label, and percentage of fp32 and bf16 outputs that differ, per comparison.
        title: what is computed.
        footer: one sentence on the replay of recordings.
    """

    exact: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    fp32: NDArray[np.float64]
    names: tuple[str, str]
    differing: list[tuple[str, float, float]]
    title: str
    footer: str


def _relative(
    values: NDArray[np.float64], base: NDArray[np.float64], exact: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The differences relative to the exact outputs; an exact zero counts as 1."""
    relative: NDArray[np.float64] = (values - base) / np.where(exact == 0, 1.0, np.abs(exact))
    return relative


def _map(
    axes: Axes, values: NDArray[np.float64], norm: Normalize, colours: str, title: str
) -> AxesImage:
    image = axes.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    axes.set_title(title, pad=5)
    axes.set_yticks([0, values.shape[0] - 1], ["1", str(values.shape[0])])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.set_ylabel("token", labelpad=-6)
    return image


def _maps(figure: SubFigure, axes: list[Axes], scene: Scene) -> None:
    """Maps of one call: both platforms against exact, and against each other."""
    from matplotlib.colors import BoundaryNorm, Normalize

    exact = scene.exact
    percent = [100 * _relative(x, exact, exact) for x in (scene.first, scene.second)]
    limit = float(np.quantile(np.abs(percent), 0.95))
    scale = Normalize(-limit, limit)
    for part, values, name in zip(axes, percent, scene.names, strict=False):
        image = _map(part, values, scale, "RdBu_r", f"{name} - exact")
    bar = figure.colorbar(image, ax=axes[:2], fraction=0.03, pad=0.015, aspect=30, extend="both")
    bar.set_label("% of the exact value")
    units = (scene.first - scene.second) / last_kept_bit(scene.second)
    steps = BoundaryNorm([*np.arange(-3.5, 4.0)], 256, extend="both")
    title = f"{scene.names[0]} - {scene.names[1]}"
    image = _map(axes[2], units, steps, "PuOr_r", title)
    bar = figure.colorbar(image, ax=axes[2], fraction=0.03, pad=0.015, aspect=14)
    bar.set_ticks([-3, -2, -1, 0, 1, 2, 3])
    bar.set_label("units of the last kept bit")
    axes[2].set_xlabel(f"output feature (1 to {exact.shape[1]})")


def _bars(axes: Axes, scene: Scene) -> None:
    """One pair of bars per comparison: fp32 outputs above, bf16 outputs below."""
    for row, (_, fp32, bf16) in enumerate(scene.differing):
        named = ("", "") if row else (" of fp32 outputs", " of bf16 outputs")
        parts = ((fp32, -0.19, BLUE), (bf16, 0.19, PALE))
        for (share, shift, colour), name in zip(parts, named, strict=True):
            axes.barh(row + shift, share, 0.36, color=colour)
            axes.text(share + 1.5, row + shift, f"{share:.1f} %{name}", va="center", fontsize=11)
    axes.set_yticks(range(len(scene.differing)), [line[0] for line in scene.differing])
    axes.invert_yaxis()
    axes.set_xlim(0, 132)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title("How many outputs differ")


def _spectrum(axes: Axes, scene: Scene) -> None:
    """Sizes of the differences on a logarithmic axis, one curve per pair."""
    first, second = scene.names
    pairs = (
        ("IEEE fp32 - exact", scene.fp32, scene.exact, GREY, "-"),
        (f"{first} - {second}", scene.first, scene.second, GREEN, "-"),
        (f"{first} - exact", scene.first, scene.exact, BLUE, "-"),
        (f"{second} - exact", scene.second, scene.exact, ORANGE, "--"),
    )
    edges = np.arange(-9.0, 0.3, 0.25)
    for label, values, base, colour, style in pairs:
        sizes = np.abs(_relative(values, base, scene.exact)).ravel()
        counts, _ = np.histogram(np.log10(sizes[sizes > 0]), edges)
        share = 100 * counts / sizes.size
        axes.stairs(share, edges, color=colour, label=label, linewidth=2, linestyle=style)
        if style == "-":
            axes.stairs(share, edges, color=colour, fill=True, alpha=0.13)
    ticks = range(-8, 1, 2)
    axes.set_xlim(-9, 0.25)
    axes.set_xticks([*ticks], [f"$10^{{{tick}}}$" for tick in ticks])
    axes.set_xlabel("difference / exact value")
    axes.set_ylabel("% of outputs")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("How large the differences are")
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    axes.legend(frameon=False, fontsize=11, loc="upper left", handlelength=1.4)


def draw(scene: Scene) -> bytes:
    """Draw the picture.

    Returns:
        The bytes of a PNG; the same ones for the same scene and version of matplotlib.

    Raises:
        NotAvailableError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotAvailableError(
            f"the picture needs matplotlib ({error}); install it with: pip install 'mmaemu[demo]'"
        ) from error
    with style.context(["default", STYLE]):
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.2, 1.0))[0]
        maps = list(left.subplots(3, 1))
        bars, spectrum = right.subplots(2, 1, height_ratios=(1.0, 1.1))
        _maps(left, maps, scene)
        _bars(bars, scene)
        _spectrum(spectrum, scene)
        figure.suptitle(scene.title, fontsize=16, x=0.01, ha="left", weight="bold")
        figure.supxlabel(scene.footer, fontsize=11.5, x=0.01, ha="left", color="#4a5058")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
