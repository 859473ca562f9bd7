"""Tensors of the stand-in: torch functions on its device run on ``meta``, which checks shapes and types for real."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tests.calibrate.standin.chips import Chip
from tests.calibrate.standin.machine import Machine

_FREE = {"dim", "numel", "size", "stride", "is_contiguous", "__len__", "data_ptr", "element_size", "untyped_storage"}
_FREE |= {
    "is_floating_point",
    "storage_offset",
    "__format__",
    "__repr__",
    "__hash__",
    "nelement",
    "is_complex",
    "__get__",
}
_FETCH = {"item", "__float__", "__int__", "__bool__", "__index__", "tolist", "numpy"}
"""What brings values to the host."""
_NO_DOUBLE = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "


class OnDevice(TorchFunctionMode):
    """Functions that ask for the device get ``meta``; each costs its time and memory on the machine.

    Values are not known: what comes back from the device is zeros that are marked, and a number made of marked tensors
    is 0 (so that a comparison with a reference passes when all its shapes and types fit). Whole tensors that were
    brought to the device with ``torch.tensor`` come back as they were.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine, self.chip = machine, machine.chip
        self.device = torch.device(self.chip.kind, 0)
        self._seen: dict[Any, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args, kwargs)
        if name in _FREE:
            return func(*args, **kwargs)
        if name in _FETCH and isinstance(args[0], torch.Tensor) and (args[0].is_meta or _marked(args[0])):
            return self._fetched(func, name, args[0])
        if name in ("cpu", "to") and args[0].is_meta and _wants(args, kwargs, "cpu"):
            return self._to_host(args, kwargs)
        asked = self._redirect(name, args, kwargs)
        if name == "cuda":
            func, name, asked = torch.Tensor.to, "to", (args[0], "meta")
        if name == "copy_" and args[1].is_meta and not args[0].is_meta:
            self.machine.synchronize()
            args[0]._standin_unknown = True
            return args[0]
        result = self._run(func, name, asked, kwargs)
        self._account(name, list(_tensors((args, kwargs))), list(_tensors(result)), args, kwargs)
        if name in ("tensor", "as_tensor") and isinstance(result, torch.Tensor) and result.is_meta:
            result._standin_values = torch.tensor(args[0])
        return result

    def _run(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """The function on ``meta``; on tensors of shapes it has seen, what it gave then (meta kernels are slow)."""
        key = (func, _key(args), _key(kwargs))
        known = self._seen.get(key)
        if known is not None:
            return args[0] if known == "in place" else torch.empty_strided(*known[:2], dtype=known[2], device="meta")
        result = func(*args, **kwargs)
        given = list(_tensors((args, kwargs)))
        if given and all(tensor.is_meta for tensor in given) and isinstance(result, torch.Tensor):
            if result is args[0]:
                self._seen[key] = "in place"
            elif result.untyped_storage()._cdata not in {tensor.untyped_storage()._cdata for tensor in given}:
                self._seen[key] = result.shape, result.stride(), result.dtype
        return result

    def _attribute(self, func: Any, args: Any, kwargs: Any) -> Any:
        which = func.__self__.__name__
        if which in ("device", "is_cuda", "is_mps") and args[0].is_meta:
            return self.device if which == "device" else which == f"is_{self.chip.kind}"
        return func(*args, **kwargs)

    def _redirect(self, name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments with ``meta`` in place of the device."""
        kwargs.pop("pin_memory", None)
        if _is_kind(kwargs.get("device"), self.chip.kind):
            kwargs["device"] = "meta"
            kwargs.pop("generator", None)
        if name == "to":
            return tuple("meta" if _is_kind(value, self.chip.kind) else value for value in args)
        return tuple(args)

    def _fetched(self, func: Any, name: str, tensor: torch.Tensor) -> Any:
        if tensor.is_meta:
            self.machine.synchronize()
        values = getattr(tensor, "_standin_values", None)
        if values is None:
            if name == "__bool__":
                return True
            values = torch.zeros(tensor.shape, dtype=tensor.dtype)
        return func(values)

    def _to_host(self, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        self.machine.synchronize()
        values = getattr(args[0], "_standin_values", None)
        dtype = kwargs.get("dtype") or next((v for v in args if isinstance(v, torch.dtype)), args[0].dtype)
        if values is not None:
            return values.to(dtype)
        host = torch.zeros(args[0].shape, dtype=dtype)
        host._standin_unknown = True  # type: ignore[attr-defined]
        return host

    def _account(
        self, name: str, given: list[torch.Tensor], made: list[torch.Tensor], args: Any, kwargs: dict[str, Any]
    ) -> None:
        """Time, memory, types and marks of what a function did."""
        if any(_marked(tensor) for tensor in given):
            for tensor in made:
                tensor._standin_unknown = True  # type: ignore[attr-defined]
        made = [tensor for tensor in made if tensor.is_meta]
        taken = [tensor for tensor in given if tensor.is_meta]
        if not made and not taken:
            return
        if self.chip.kind == "mps":
            for tensor in made:
                _require_type(tensor.dtype)
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        stores = {tensor.untyped_storage()._cdata for tensor in taken}
        fresh = [tensor for tensor in made if tensor.untyped_storage()._cdata not in stores]
        if not (fresh or writes):
            return
        for tensor in fresh:
            self.machine.allocated(tensor)
        if name.startswith("empty") or name == "new_empty":
            return
        require(self.chip, name, taken)
        moved = sum(tensor.numel() * tensor.element_size() for tensor in (*taken, *fresh))
        self.machine.launch(name, self.machine.truth.function(name, (*args, *kwargs.values()), moved))


class Repeated:
    """The call of a kernel: it runs on ``meta`` the first time, and is only launched again on operands of equal shapes.

    seconds: what it takes on the device. Calls that do more than launch (that wait, or return several tensors or a part
    of an operand) run every time.
    """

    def __init__(self, machine: Machine, call: Callable[..., Any], seconds: float) -> None:
        self._machine, self._call, self._seconds = machine, call, seconds
        self._known: dict[Any, tuple[list[str], Any]] = {}

    def __call__(self, *operands: Any) -> Any:
        machine = self._machine
        with machine.operator(self._seconds):
            with torch._C.DisableTorchFunction():
                key = _key(operands)
                names, outline = self._known.get(key, ((), None))
                if outline is not None:
                    machine.relaunch(names)
                    again = torch.empty_strided(*outline[:2], dtype=outline[2], device="meta")
                    machine.allocated(again)
                    return again
            before, machine.recording = machine.recording, []
            try:
                result = self._call(*operands)
                calls = machine.recording
            finally:
                machine.recording = before
            with torch._C.DisableTorchFunction():
                if isinstance(result, torch.Tensor) and result.is_meta and {kind for kind, _ in calls} <= _PLAIN:
                    stores = {tensor.untyped_storage()._cdata for tensor in _tensors(operands)}
                    if result.untyped_storage()._cdata not in stores:
                        names = [name for kind, name in calls if kind == "launch"]
                        self._known[key] = names, (result.shape, result.stride(), result.dtype)
            return result


_PLAIN = {"launch", "allocate"}


def _key(value: Any) -> Any:
    """What a call depends on where values are not known: the outlines of tensors, everything else as it is."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride() if value.layout is torch.strided else None, value.dtype, value.is_meta
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(entry)) for name, entry in value.items())
    return value if value.__hash__ is not None else repr(value)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _marked(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "_standin_unknown", False)


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, torch.device):
        return value.type == kind
    return isinstance(value, str) and value.split(":")[0] == kind


def _wants(args: Any, kwargs: dict[str, Any], kind: str) -> bool:
    values: Iterable[Any] = (*args[1:], kwargs.get("device"))
    return (len(args) == 1 and not kwargs) or any(_is_kind(value, kind) for value in values)


def _require_type(dtype: torch.dtype) -> None:
    """MPS has no float64, and no float8 (torch/csrc, ``getMPSScalarType``)."""
    if dtype is torch.float64:
        raise TypeError(f"{_NO_DOUBLE}Please use float32 instead.")
    if "float8" in str(dtype):
        raise TypeError(f"Trying to convert {dtype} to the MPS backend but it does not have support for that dtype.")


def require(chip: Chip, name: str, taken: list[torch.Tensor]) -> None:
    """What torch's own kernels refuse by architecture. Raises the error that torch raises."""
    least = {"_flash_attention_forward": (8, 0), "_scaled_mm": (8, 9), "_weight_int4pack_mm": (8, 0), "_int_mm": (7, 5)}
    words = {
        "_flash_attention_forward": "FlashAttention only supports Ampere GPUs or newer.",
        "_scaled_mm": "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9",
        "_weight_int4pack_mm": "_weight_int4pack_mm_cuda requires compute capability 8.0 or higher",
        "_int_mm": "_int_mm_out_cuda not compiled for this device",
    }
    name = {"scaled_mm": "_scaled_mm", "_scaled_mm_v2": "_scaled_mm"}.get(name, name)
    if chip.kind == "mps" and name in ("_flash_attention_forward", "_scaled_mm", "_int_mm"):
        raise NotImplementedError(f"The operator 'aten::{name}' is not currently implemented for the MPS device.")
    if chip.kind != "cuda":
        return
    if not chip.arch and chip.capability < least.get(name, (0, 0)):
        raise RuntimeError(words[name])
    if chip.arch.startswith("gfx942") and name == "_scaled_mm" and taken[0].dtype is torch.float8_e4m3fn:
        raise RuntimeError("hipblaslt of gfx942 multiplies Float8_e4m3fnuz, not Float8_e4m3fn")
