"""Rotary positions (RoPE: Su et al. 2021, arXiv:2104.09864) and the ways to stretch them over longer texts.

Halves of a head are rotated against each other, as checkpoints in transformers' layout have them. It reads both
schemas of config.json: ``rope_theta`` with ``rope_scaling``, and ``rope_parameters``, which may differ by kind of
layer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from forebay.core.errors import UnsupportedCheckpoint
from forebay.layers.batch import FlatBatch
from forebay.layers.program import Inputs, Recorder

Turns = tuple[Tensor, Tensor] | int
"""Cosines and sines [T, 1, size] of the angles by which every token's queries and keys are rotated; in a recording,
which of the step's tables will have them."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a config says of positions: the base ``theta``, how many numbers of a head are rotated (``size``), the
    longest text ``max_len`` that the config names, and the parameters of the scaling."""

    theta: float
    size: int
    max_len: int
    parameters: Mapping[str, Any]

    def number(self, name: str, default: float | None = None) -> float:
        """A parameter of the scaling; one that is absent and has no default fails the load."""
        value = self.parameters.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedCheckpoint(f"config.json: the RoPE parameters need a number '{name}', found {value!r}")
        return float(value)

    @property
    def original_len(self) -> float:
        """The length that the model was first trained for."""
        return self.number("original_max_position_embeddings", float(self.max_len))

    @property
    def exponents(self) -> Tensor:
        """0, 2/size, 4/size, … below 1, float32 [size / 2]."""
        return torch.arange(0, self.size, 2, dtype=torch.float32, device="cpu") / self.size

    @property
    def plain(self) -> Tensor:
        """The frequencies [size / 2] of RoPE without scaling."""
        return 1.0 / self.theta**self.exponents


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Angles a position, [size / 2]; ``long`` are those of texts beyond ``original_len``, where they differ.

    ``growth`` g stretches the base for a text of L > ``original_len`` tokens to theta (g L / original_len - g + 1) to
    the power of size / (size - 2). ``amplitude`` multiplies cosines and sines.
    """

    short: Tensor
    long: Tensor | None = None
    original_len: float = math.inf
    growth: float | None = None
    amplitude: float = 1.0


def _default(scaling: Scaling) -> Frequencies:
    return Frequencies(scaling.plain)


def _linear(scaling: Scaling) -> Frequencies:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595)."""
    return Frequencies(scaling.plain / scaling.number("factor"))


def _dynamic(scaling: Scaling) -> Frequencies:
    """NTK-aware interpolation whose base grows with the text."""
    return Frequencies(scaling.plain, original_len=scaling.max_len, growth=scaling.number("factor"))


def _llama3(scaling: Scaling) -> Frequencies:
    """Llama 3.1: slow rotations are stretched, fast ones left, those between are mixed."""
    plain, factor, length = scaling.plain, scaling.number("factor"), scaling.original_len
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    rotations = length * plain / (2 * math.pi)
    kept = ((rotations - low) / (high - low)).clamp(0, 1)
    return Frequencies((1 - kept) * plain / factor + kept * plain)


def _yarn(scaling: Scaling) -> Frequencies:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): a ramp between stretched and plain frequencies, and a temperature."""
    length = scaling.original_len
    factor = scaling.number("factor", scaling.max_len / length)
    first, last = (
        scaling.size * math.log(length / (scaling.number(name, default) * 2 * math.pi)) / (2 * math.log(scaling.theta))
        for name, default in (("beta_fast", 32), ("beta_slow", 1))
    )
    if scaling.parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, scaling.size - 1)
    steps = torch.arange(scaling.size // 2, dtype=torch.float32, device="cpu")
    kept = 1 - ((steps - first) / ((last - first) or 0.001)).clamp(0, 1)
    frequencies = scaling.plain / factor * (1 - kept) + scaling.plain * kept
    return Frequencies(frequencies, amplitude=scaling.number("attention_factor", _yarn_amplitude(scaling, factor)))


def _yarn_amplitude(scaling: Scaling, factor: float) -> float:
    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weights = [scaling.number(name, 0) for name in ("mscale", "mscale_all_dim")]
    return grown(weights[0]) / grown(weights[1]) if all(weights) else grown(1.0)


def _longrope(scaling: Scaling) -> Frequencies:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a divisor for each frequency, of short and of long texts."""
    length = scaling.original_len
    factor = scaling.number("factor", scaling.max_len / length)
    amplitude = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    short, long = (_divide(scaling, name) for name in ("short_factor", "long_factor"))
    return Frequencies(short, long, length, amplitude=scaling.number("attention_factor", amplitude))


def _divide(scaling: Scaling, name: str) -> Tensor:
    divisors = scaling.parameters.get(name)
    if not isinstance(divisors, list) or len(divisors) != scaling.size // 2:
        raise UnsupportedCheckpoint(f"config.json: '{name}' of longrope must be a list of {scaling.size // 2} numbers")
    return 1.0 / (torch.tensor(divisors, dtype=torch.float32, device="cpu") * scaling.theta**scaling.exponents)


SCALINGS: dict[str, Callable[[Scaling], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """The rotation of one kind of layer. ``stretch`` is how much further than the config's length texts may reach."""

    frequencies: Frequencies
    size: int
    theta: float
    stretch: float = 1.0
    _on: dict[torch.device, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    _tables: list[Tensor] = field(default_factory=list)

    @property
    def reads_length(self) -> bool:
        """Tell that a token's angle depends on its whole text's length: such texts can't be read in parts."""
        return self.frequencies.original_len < math.inf

    def turns(self, inputs: Inputs | Recorder, dtype: torch.dtype) -> Turns:
        """The step's cosines and sines."""
        if isinstance(inputs, Recorder):
            return inputs.rotate_by(self)
        batch = inputs.batch
        angles = batch.positions[:, None].float() * self._frequencies(batch)
        angles = torch.cat((angles, angles), -1)[:, None]
        amplitude = self.frequencies.amplitude
        return (angles.cos() * amplitude).to(dtype), (angles.sin() * amplitude).to(dtype)

    def table(self, batch: FlatBatch) -> tuple[Tensor, Tensor]:
        """Cosines and sines [rows, size / 2 | size / 2] in float32, and the row of each token, int64 [T]."""
        if self._is_stretched(batch):
            return self._table(batch.positions, self._frequencies(batch)), torch.arange(len(batch.positions))
        num_rows = int(batch.positions.max()) + 1 if len(batch.positions) else 0
        if not self._tables or len(self._tables[0]) < num_rows:
            positions = torch.arange(1 << num_rows.bit_length())
            self._tables[:] = [self._table(positions, self._frequencies(batch))]
        return self._tables[0], batch.positions

    def _table(self, positions: Tensor, frequencies: Tensor) -> Tensor:
        angles = positions[:, None].float() * frequencies
        return torch.cat((angles.cos(), angles.sin()), -1) * self.frequencies.amplitude

    def _is_stretched(self, batch: FlatBatch) -> bool:
        """Tell that some text has frequencies of its own."""
        return self.reads_length and batch.max_len > self.frequencies.original_len

    def _frequencies(self, batch: FlatBatch) -> Tensor:
        """[size / 2], or [T, size / 2] where they depend on each text's length."""
        device = batch.positions.device
        if device not in self._on:
            long = self.frequencies.long
            self._on[device] = self.frequencies.short.to(device), None if long is None else long.to(device)
        short, long = self._on[device]
        if not self._is_stretched(batch):
            return short
        lens = batch.cu_seqlens.diff()
        lens = lens.repeat_interleave(lens)[:, None]
        if long is not None:
            return torch.where(lens > self.frequencies.original_len, long, short)
        return self._grown(lens)

    def _grown(self, lens: Tensor) -> Tensor:
        growth, limit = self.frequencies.growth, self.frequencies.original_len
        assert growth is not None
        stretched = growth * lens.clamp(min=int(limit)) / limit - (growth - 1)
        bases = self.theta * stretched ** (self.size / (self.size - 2))
        return 1.0 / bases ** (torch.arange(0, self.size, 2, device=lens.device) / self.size)


def rotate(x: Tensor, turns: Turns) -> Tensor:
    """Rotate the first numbers of every head of x [T, heads, d], as many as there are angles."""
    assert not isinstance(turns, int), "a recording rotates no tensors"
    cos, sin = turns
    size = cos.shape[-1]
    turned = x[..., :size]
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-second, first), -1) * sin
    return turned if size == x.shape[-1] else torch.cat((turned, x[..., size:]), -1)


def make_rotary(parameters: Mapping[str, Any], theta: float, size: int, max_len: int) -> Rotary:
    """Make the rotation of ``size`` numbers of a head from one set of parameters, whichever schema it stands in."""
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in SCALINGS:
        known = ", ".join(sorted(SCALINGS))
        raise UnsupportedCheckpoint(f"config.json: the RoPE type {kind!r} is not supported; supported: {known}")
    scaling = Scaling(theta, size, max_len, parameters)
    stretch = scaling.number("factor") if kind == "dynamic" else 1.0
    return Rotary(SCALINGS[kind](scaling), size, theta, stretch)


def read_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json's one set of RoPE parameters; what stands beside it in the older schema is put in."""
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(found, dict):
        raise UnsupportedCheckpoint("config.json: 'rope_scaling' or 'rope_parameters' must be an object")
    beside = {name: config.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    parameters = {name: value for name, value in beside.items() if value is not None} | found
    if config.get("original_max_position_embeddings") is not None:
        parameters["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return parameters


def read_rotary(
    config: Mapping[str, Any],
    parameters: Mapping[str, Any],
    head_dim: int,
    *,
    theta: float = 10_000.0,
    part: float = 1.0,
) -> Rotary:
    """Make the rotation that ``parameters`` describe, of whole heads or of the ``part`` that the architecture takes."""
    if parameters.get("partial_rotary_factor", part) != part:
        raise UnsupportedCheckpoint(
            f"config.json: 'partial_rotary_factor' is {parameters['partial_rotary_factor']!r}; this architecture "
            f"rotates {part}"
        )
    size, default_theta = int(head_dim * part), theta
    theta, max_len = parameters.get("rope_theta") or default_theta, config.get("max_position_embeddings")
    if not isinstance(theta, int | float) or theta <= 1 or not isinstance(max_len, int) or size < 2 or size % 2:
        raise UnsupportedCheckpoint(
            f"config.json: 'rope_theta' ({theta!r}) must be above 1, 'max_position_embeddings' ({max_len!r}) a whole "
            f"number, and the rotated part of a head ({size}) even"
        )
    return make_rotary(parameters, float(theta), size, max_len)
