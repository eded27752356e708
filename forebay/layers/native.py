"""Whether the native kernels can serve, and which: the extension ``forebay._native``, if it is there and fits.

It knows neither models nor programs. Setting FOREBAY_NATIVE=0 in the environment leaves everything to torch; the
name of an instruction set (avx512, avx2) chooses that one.
"""

import os
from importlib import import_module
from typing import Any, NamedTuple

import torch


def _find_extension() -> Any:
    try:
        return import_module("forebay._native")
    except ImportError:  # it is built only where the installation found a compiler
        return None


extension = _find_extension()
"""The module ``forebay._native``, described by its .pyi file, or None."""

SWITCH = "FOREBAY_NATIVE"
_OFF = ("0", "off", "no", "false")
_OWN_CHOICE = ("", "1", "on", "yes", "true")


class Kernels(NamedTuple):
    """The instruction set that will run, or "" and why none does."""

    name: str
    why: str


def choose_kernels(dtype: torch.dtype, device: torch.device) -> Kernels:
    """Return the kernels for a model of this dtype on this device."""
    if device.type != "cpu":
        return Kernels("", f"on {device.type}")
    wish = os.environ.get(SWITCH, "").lower()
    if wish in _OFF:
        return Kernels("", f"{SWITCH}={wish}")
    if extension is None:
        return Kernels("", "the package was installed without its native kernels")
    if dtype != torch.float32:
        return Kernels("", f"no native kernels for {str(dtype).removeprefix('torch.')} yet")
    known = extension.kernels()
    if wish not in _OWN_CHOICE:
        return Kernels(wish, f"{SWITCH}={wish}") if wish in known else Kernels("", f"no kernels for {SWITCH}={wish}")
    best = known[0]
    return Kernels(best, "best of this processor") if best != "plain" else Kernels("", "the processor lacks AVX2")
