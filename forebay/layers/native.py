"""Whether the native kernels can serve, and which: the extension ``forebay._native``, if it is there and fits.

It knows neither models nor programs. Setting FOREBAY_NATIVE=0 in the environment leaves everything to torch; the
name of an instruction set (avx512, avx2) chooses that one, with "-basic" behind it without its instructions for lower
precision.
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


def is_wanted() -> bool:
    """Tell that the extension is there and not switched off."""
    return extension is not None and os.environ.get(SWITCH, "").lower() not in _OFF


class Kernels(NamedTuple):
    """The instruction set that will run, or "" and why none does; by what it multiplies in lower precision."""

    name: str
    why: str
    form: str = ""

    def __str__(self) -> str:
        """What is said of the path."""
        return f"native {self.name}{self.form and f', {self.form}'}"


def choose_kernels(dtype: str, device: torch.device) -> Kernels:
    """Return the kernels for a model of this dtype (float32, bfloat16, int8) on this device."""
    if device.type != "cpu":
        return Kernels("", f"on {device.type}")
    wish = os.environ.get(SWITCH, "").lower()
    if wish in _OFF:
        return Kernels("", f"{SWITCH}={wish}")
    if extension is None:
        return Kernels("", "the package was installed without its native kernels")
    known = extension.kernels()
    if wish in _OWN_CHOICE:
        best = known[0]
        if best == "plain":
            return Kernels("", "the processor lacks AVX2 or FMA")
        return Kernels(best, "best of this processor", _form(best, dtype))
    if wish not in known:
        return Kernels("", f"no kernels for {SWITCH}={wish}")
    if not extension.has_precision(wish, dtype):
        return Kernels("", f"the kernels of {SWITCH}={wish} have no {dtype}")
    return Kernels(wish, f"{SWITCH}={wish}", _form(wish, dtype))


def _form(kernels: str, dtype: str) -> str:
    return "" if dtype == "float32" else f"{dtype} by {extension.form_of(kernels, dtype)}"
