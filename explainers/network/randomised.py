"""A private copy of a network whose weights can be drawn anew, module by module; the user's is not touched.

The copy's modules are its own and share the trained parameters until these are replaced: nothing is written into one.
Its buffers are copies, since a network may write into them even in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from explainers.errors import UnsupportedModel
from explainers.hooks.locate import no_inner_hooks
from explainers.network.eval_view import EvalView, view
from explainers.network.forwarded import Forwarded

_STATISTICS = {"running_mean": 0.0, "running_var": 1.0, "weight": 1.0, "bias": 0.0}
"""A normalisation that scales and shifts nothing: by its name, what each tensor of it becomes."""
_MODULES_A_SEED = 1 << 20
_POWER_ITERATIONS = 30


class RandomisedCopy:
    """The copy, `network`; `randomise` draws weights anew, `restore` brings the trained ones back.

    Weights with two or more axes are drawn as He et al. 2015 initialise them, from a normal distribution with variance
    2 / fan-in, and their biases are zero. A normalisation becomes the identity on its statistics: mean and shift 0,
    variance and scale 1, in a batch norm the running ones. Every other parameter (class tokens, position embeddings,
    scales of layers) is drawn from a normal distribution with the mean and variance of its trained values.

    With torch's own `reset_parameters`, which Quantus takes, the signal shrinks by a constant factor at each layer:
    on EfficientNet-Lite0 the scores of different photographs were then the same to 1e-7, and no map says anything about
    a network that ignores its input. With variance 2 / fan-in they differ by a tenth of their size.

    Errors   UnsupportedModel for frozen graphs, quantized networks, scripted parts and functions `forward=`
    """

    def __init__(self, model: EvalView) -> None:
        _refuse(model)
        self.network = view(model.model)
        self._modules = dict(self.network.named_modules())
        self._index = {name: k for k, name in enumerate(self._modules)}
        self._buffers = _own_buffers(self._modules.values())
        tables = [table for m in self._modules.values() for table in (m._parameters, m._buffers)]
        self._trained = [(table, dict(table)) for table in tables]
        self._held: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    self._held.setdefault(id(tensor), []).append((table, name))
        self._drawn: set[int] = set()

    def randomise(self, modules: Iterable[str], seed: int) -> None:
        """Draw the weights of the modules of these names; those of a module depend on its name and the seed alone.

        Tensors that several modules share are drawn once, for all of them.
        """
        for name in modules:
            module = self._modules[name]
            generator = torch.Generator().manual_seed(seed * _MODULES_A_SEED + self._index[name])
            for key, tensor in _weights_of(module):
                if id(tensor) in self._drawn or id(tensor) not in self._held:
                    continue
                new = _drawn(module, key, tensor, generator).to(tensor)
                if isinstance(tensor, nn.Parameter):
                    new = nn.Parameter(new, tensor.requires_grad)
                for table, held in self._held[id(tensor)]:
                    table[held] = new
                self._drawn.add(id(tensor))
            _renew_spectral_norms(module, generator)

    def restore(self) -> None:
        """The trained weights again, everywhere."""
        self._drawn.clear()
        for table, tensors in self._trained:
            table.update(tensors)
        for own, trained in self._buffers:
            own.copy_(trained)


def _own_buffers(modules: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Put copies in the place of all buffers; returns each with what it is a copy of. Shared ones stay shared."""
    copies: dict[int, tuple[Tensor, Tensor]] = {}
    for module in modules:
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = copies.setdefault(id(tensor), (tensor.clone(), tensor))[0]
    return [*copies.values()]


def _renew_spectral_norms(module: nn.Module, generator: torch.Generator) -> None:
    """Give a spectral norm the singular vectors of the weights just drawn: it holds those of the trained ones."""
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
    """Of the largest singular value of a weight as the matrix [dim, rest], by power iteration."""
    assert weight is not None
    matrix = weight.detach().movedim(dim, 0).flatten(1)
    u = torch.randn(len(matrix), generator=generator).to(matrix)
    for _ in range(_POWER_ITERATIONS):
        v = nn.functional.normalize(matrix.T @ u, dim=0)
        u = nn.functional.normalize(matrix @ v, dim=0)
    return u, v


def _refuse(model: EvalView) -> None:
    if model.kind is not None:
        raise UnsupportedModel(no_inner_hooks(model.kind))
    if isinstance(model.model, Forwarded):
        raise UnsupportedModel(
            "forward= runs the model that was given, and the weights are drawn anew in a copy of it. Wrap model and "
            "function in an nn.Module that takes images alone."
        )
    if model.quantized:
        raise UnsupportedModel(
            f"The network is quantized ({model.quantized}), and packed weights cannot be drawn anew. Test the network "
            "in floating point."
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.model.modules()):
        raise UnsupportedModel(
            "A part of the network is scripted, and compiled code takes no other weights in a copy. Test the network "
            "as it was before torch.jit.script."
        )


def _is_norm(module: nn.Module) -> bool:
    return "running_mean" in module._buffers or isinstance(module, (nn.LayerNorm, nn.GroupNorm))


def _weights_of(module: nn.Module) -> Sequence[tuple[str, Tensor]]:
    """The module's own weights; of a normalisation its buffers too, where they are numbers that it works with."""
    both: list[tuple[str, Tensor | None]] = [*module._parameters.items()]
    if _is_norm(module):
        both += [(name, tensor) for name, tensor in module._buffers.items() if name in _STATISTICS]
    return [(name, tensor) for name, tensor in both if tensor is not None and tensor.is_floating_point()]


def _drawn(module: nn.Module, name: str, trained: Tensor, generator: torch.Generator) -> Tensor:
    """New values in float32 on the CPU, so that a seed gives the same network on every device."""
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
