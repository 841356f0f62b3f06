"""A private copy of a network whose weights can be randomized module by module, without modifying the user's network.

The copy has separate module objects that share the trained parameters until these are replaced, never overwritten. Its
buffers are copies, since a network may write to them even in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from explainers.call.view import EvalView
from explainers.errors import UnsupportedModel
from explainers.hooks.locate import no_inner_hooks
from explainers.hooks.shallow_copy import shallow_copy
from explainers.nested import list_tensors

_STATISTICS = {"running_mean": 0.0, "running_var": 1.0, "weight": 1.0, "bias": 0.0}
"""Values of the tensors of a randomized normalization layer, by name: no scale, no shift."""
_MODULES_A_SEED = 1 << 20
_POWER_ITERATIONS = 30


class RandomizedCopy:
    """The copy, `network`; `randomize` samples new weights, `restore` brings back the trained ones.

    Weights with two or more axes are initialized as in He et al. 2015, from a normal distribution with variance
    2 / fan-in, with zero biases. Normalization layers get mean and shift 0, variance and scale 1; in a batch norm these
    are the running statistics. All other parameters (class tokens, position embeddings, layer scales) are sampled from
    a normal distribution with the mean and variance of their trained values.

    With torch's `reset_parameters`, which Quantus uses, the signal shrinks by a constant factor at each layer. On
    EfficientNet-Lite0 the scores of different images were then equal to 1e-7, and a map of a network that ignores its
    input is meaningless. With variance 2 / fan-in the scores differ by a tenth of their magnitude.

    Errors   UnsupportedModel for frozen graphs, quantized networks and scripted parts
    """

    def __init__(self, model: EvalView) -> None:
        _check_supported(model)
        self._original = model.model
        self.network = shallow_copy(model.model)
        self._modules = dict(self.network.named_modules())
        self._index = {name: k for k, name in enumerate(self._modules)}
        self._buffers = _copy_buffers(self._modules.values())
        tables = [table for m in self._modules.values() for table in (m._parameters, m._buffers)]
        self._trained = [(table, dict(table)) for table in tables]
        self._held: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    self._held.setdefault(id(tensor), []).append((table, name))
        self._randomized: set[int] = set()

    def randomize(self, modules: Iterable[str], seed: int) -> None:
        """Sample new weights for the named modules; they depend only on the module's index in the network and the seed.

        Tensors shared by several modules are sampled once.
        """
        for name in modules:
            module = self._modules[name]
            generator = torch.Generator().manual_seed(seed * _MODULES_A_SEED + self._index[name])
            for key, tensor in _weights_of(module):
                if id(tensor) in self._randomized or id(tensor) not in self._held:
                    continue
                new = _sample(module, key, tensor, generator).to(tensor)
                if isinstance(tensor, nn.Parameter):
                    new = nn.Parameter(new, tensor.requires_grad)
                for table, held in self._held[id(tensor)]:
                    table[held] = new
                self._randomized.add(id(tensor))
            _update_spectral_norms(module, generator)

    def outputs(self, images: Tensor) -> list[Tensor]:
        """Return the tensors of the copy's output.

        Errors   UnsupportedModel if the copy runs a module with weights that is not part of it
        """
        from explainers.unusual.original_modules import run_copy  # the guard, which most calls do not need

        return [each.clone() for each in list_tensors(run_copy(self.network, self._original, images.clone()))]

    def restore(self) -> None:
        """Restore the trained weights of all modules."""
        self._randomized.clear()
        for table, tensors in self._trained:
            table.update(tensors)
        for own, trained in self._buffers:
            own.copy_(trained)


def _copy_buffers(modules: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Replace all buffers by copies, keeping shared ones shared, and return pairs (copy, original)."""
    copies: dict[int, tuple[Tensor, Tensor]] = {}
    for module in modules:
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = copies.setdefault(id(tensor), (tensor.clone(), tensor))[0]
    return [*copies.values()]


def _update_spectral_norms(module: nn.Module, generator: torch.Generator) -> None:
    """Recompute the singular vectors that a spectral norm stores, for the randomized weights."""
    if isinstance(module, ParametrizationList):
        for norm in module.children():
            if isinstance(norm, _SpectralNorm) and "_u" in norm._buffers:
                u, v = _singular_vectors(module._parameters["original"], norm.dim, generator)
                norm._buffers |= {"_u": u, "_v": v}
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            u, v = _singular_vectors(module._parameters[f"{hook.name}_orig"], hook.dim, generator)
            module._buffers |= {f"{hook.name}_u": u, f"{hook.name}_v": v}


def _singular_vectors(weight: Tensor | None, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the singular vectors of the largest singular value of a weight matrix [dim, rest], by power iteration."""
    assert weight is not None
    matrix = weight.detach().movedim(dim, 0).flatten(1)
    u = torch.randn(len(matrix), generator=generator).to(matrix)
    for _ in range(_POWER_ITERATIONS):
        v = nn.functional.normalize(matrix.T @ u, dim=0)
        u = nn.functional.normalize(matrix @ v, dim=0)
    return u, v


def _check_supported(model: EvalView) -> None:
    if model.kind is not None:
        raise UnsupportedModel(no_inner_hooks(model.kind))
    if model.quantized:
        raise UnsupportedModel(
            f"The network is quantized ({model.quantized}), and packed weights cannot be randomized. Use the "
            "floating-point network."
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.model.modules()):
        raise UnsupportedModel(
            "A part of the network is scripted, and the weights of compiled code cannot be replaced in a copy. Use the "
            "network as it was before torch.jit.script."
        )


def _is_norm(module: nn.Module) -> bool:
    return "running_mean" in module._buffers or isinstance(module, (nn.LayerNorm, nn.GroupNorm))


def _weights_of(module: nn.Module) -> Sequence[tuple[str, Tensor]]:
    """Return the module's own floating-point weights, and the statistics of a normalization layer."""
    both: list[tuple[str, Tensor | None]] = [*module._parameters.items()]
    if _is_norm(module):
        both += [(name, tensor) for name, tensor in module._buffers.items() if name in _STATISTICS]
    return [(name, tensor) for name, tensor in both if tensor is not None and tensor.is_floating_point()]


def _sample(module: nn.Module, name: str, trained: Tensor, generator: torch.Generator) -> Tensor:
    """Sample new values in float32 on the CPU, so that a seed gives the same network on every device."""
    new = torch.empty(trained.shape)
    if _is_norm(module) and name in _STATISTICS:
        return new.fill_(_STATISTICS[name])
    if name.endswith("weight") and new.ndim > 1:
        return nn.init.kaiming_normal_(new, nonlinearity="relu", generator=generator)
    if name.endswith("bias") and new.ndim == 1:
        return new.zero_()
    values = trained.detach().float().cpu()
    spread = float(values.std()) if values.numel() > 1 else 0.0
    return new.normal_(generator=generator) * spread + values.mean()
