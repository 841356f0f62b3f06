"""Group a network's weights in running order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from explainers.blocks.partition import Blocks, network_blocks
from explainers.call.current import eval_view
from explainers.call.profile import profile
from explainers.call.view import EvalView
from explainers.errors import UnsupportedModel
from explainers.layers.layout import Grid
from explainers.layers.profile import Profile
from explainers.nested import list_tensors


@dataclass(frozen=True)
class WeightGroup:
    """The dotted names of consecutive modules that own weights, and a name for the group."""

    name: str
    modules: tuple[str, ...]


@dataclass
class _Group:
    """Modules of consecutive blocks, the grid of the last block, and the number of blocks."""

    modules: list[str]
    grid: Grid | None
    blocks: int = 1


def weight_groups(model: nn.Module | EvalView, images: Tensor, most: int) -> list[WeightGroup]:
    """Group the modules that own weights, block by block in running order; the last layer with weights is separate.

    A module is ordered by its first call. A module used by another's code (the projection of an attention) takes the
    position of that module, a list of parameters the position of its last use, and a module that never runs comes
    first. Modules that do not affect the score are omitted. If there are more than `most` groups, neighbors of the same
    resolution are merged, starting at the input.

    Returns  at most `most` groups (at least two); none if the network has no weights
    Errors   UnsupportedModel for scripted, traced and exported models, and for weights that are plain tensors
    """
    view = model if isinstance(model, EvalView) else eval_view(model)
    layers = profile(view, images)
    called = {layer.path for layer in layers}
    own: dict[str, list[Tensor]] = {}
    holding: dict[str, list[str]] = {}
    for name, module in view.network.named_modules():
        if tensors := _own(module):
            owner = _parametrized(name)
            own.setdefault(owner, []).extend(tensors)
            holding.setdefault(owner, []).append(name)
    lists = {name for name in own if isinstance(view.network.get_submodule(name), (nn.ParameterList, nn.ParameterDict))}
    order = _in_running_order(own, layers)
    plain = _plain_tensors(view.network)
    if lists or plain:
        uses = _Uses(plain)
        with torch.no_grad(), uses:
            view.network(images[:1].detach().clone())
        order = _with_lists(order, own, lists, uses.last)
    matrices = [name for name in order if name in called | lists and any(tensor.ndim > 1 for tensor in own[name])]
    groups = _by_block(order, layers, network_blocks(view.network, images), matrices[-1:])
    while len(groups) > max(most, 2):
        _join_neighbors(groups)
    parameters = [name for name, _ in view.network.named_parameters(recurse=False)]
    found = []
    for group in groups:
        label = _label(group.modules, own, called) or ", ".join(parameters)
        found.append(WeightGroup(label, tuple(name for owner in group.modules for name in holding[owner])))
    return found


def _parametrized(name: str) -> str:
    """Return the module of a parametrization ("fc" for "fc.parametrizations.weight"), or the name itself."""
    return f".{name}".partition(".parametrizations.")[0][1:]


def _own(module: nn.Module) -> list[Tensor]:
    """Return the tensors owned by the module that are weights or normalization statistics."""
    buffers = [module._buffers.get(name) for name in ("running_mean", "running_var")]
    return [tensor for tensor in (*module._parameters.values(), *buffers) if tensor is not None]


def _in_running_order(own: Iterable[str], layers: Profile) -> dict[str, int]:
    """Return for each module that owns weights the index of the first call of it or inside it, in running order."""
    reads, paths = layers.forward.graph.reads(layers.forward.end), [layer.path for layer in layers]
    called = set(paths)
    found: dict[str, int] = {}
    for name in own:
        at = name
        while at and at not in called:
            at = at.rpartition(".")[0]
        node = layers.forward.nodes[paths.index(name)] if name in called else None
        if node is None or node in reads:
            inside = (k for k, path in enumerate(paths) if path == at or path.startswith(f"{at}."))
            found[name] = next(inside, 0) if at else 0
    return dict(sorted(found.items(), key=lambda item: item[1]))


class _Uses(TorchFunctionMode):
    """Records the last use of each tensor in a forward pass, and refuses plain tensors that are used as weights.

    Errors   UnsupportedModel
    """

    def __init__(self, plain: dict[int, str]) -> None:
        super().__init__()
        self.plain = dict(plain)
        self.last: dict[int, int] = {}
        self._count, self._derived = 0, list[Tensor]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count += 1
        given = list_tensors((args, kwargs or {}))
        self.last |= {id(tensor): self._count for tensor in given}
        plain = [self.plain[id(tensor)] for tensor in given if id(tensor) in self.plain]
        if plain and getattr(function, "__name__", "") in _PRODUCTS:
            raise UnsupportedModel(
                f"The network uses the plain tensor {plain[0]!r} as weights, which would keep its trained values. Make "
                "it an nn.Parameter, or a buffer (register_buffer) if it is a constant."
            )
        result = function(*args, **(kwargs or {}))
        if plain and len(plain) == len(given):  # such as a transposed weight
            self._derived += list_tensors(result)
            self.plain |= {id(tensor): plain[0] for tensor in list_tensors(result)}
        return result


_PRODUCTS = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul __matmul__ __rmatmul__ mm "
    "bmm einsum addmm baddbmm bilinear embedding".split()
)


def _plain_tensors(network: nn.Module) -> dict[int, str]:
    """Return the names of float tensors with several axes that are attributes of modules, by id."""
    found: dict[int, str] = {}
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_"):
                inside = [each for each in list_tensors(value) if each.is_floating_point() and each.ndim > 1]
                found |= {id(each): f"{path}.{name}".strip(".") for each in inside}
    owned = {id(each) for each in (*network.parameters(), *network.buffers())}
    return {key: name for key, name in found.items() if key not in owned}


def _with_lists(
    order: dict[str, int], own: dict[str, list[Tensor]], lists: Collection[str], last: dict[int, int]
) -> dict[str, int]:
    """Return the order with each list of parameters behind the modules whose weights are used before its last one."""
    uses = {name: max((last.get(id(tensor), 0) for tensor in own[name]), default=0) for name in order}
    found, names = dict(order), [name for name in order if name not in lists]
    for name in sorted(lists & order.keys(), key=uses.__getitem__):
        before = [each for each in names if uses[each] < uses[name]]
        names.insert(names.index(before[-1]) + 1 if before else 0, name)
        found[name] = found[before[-1]] if before else 0
    return {name: found[name] for name in names}


def _by_block(order: dict[str, int], layers: Profile, blocks: Blocks, last: list[str]) -> list[_Group]:
    """Group the modules by block; the last layer with a weight matrix and later modules form a separate group."""
    place = {name: b for b, block in enumerate(blocks.blocks) for step in block.steps for name in step.names}
    groups: dict[int, _Group] = {}
    is_last = False
    for name, first in order.items():
        is_last = is_last or name in last
        after = (place[layer.name] for layer in layers[first:] if layer.name in place)
        block = len(blocks.blocks) if is_last else next(after, len(blocks.blocks) - 1)
        grid = blocks.blocks[block].layer.grid if block in range(len(blocks.blocks)) else None
        groups.setdefault(block, _Group([], grid)).modules.append(name)
    return list(groups.values())


def _join_neighbors(groups: list[_Group]) -> None:
    """Merge the neighbors with the fewest blocks, preferably of the same resolution, but never the last group."""
    pairs = range(len(groups) - 2)
    alike = [k for k in pairs if groups[k].grid == groups[k + 1].grid] or pairs
    k = min(alike, key=lambda each: groups[each].blocks + groups[each + 1].blocks)
    first, second = groups[k : k + 2]
    groups[k : k + 2] = [_Group(first.modules + second.modules, second.grid, first.blocks + second.blocks)]


def _label(modules: list[str], own: Collection[str], called: Collection[str]) -> str:
    """Return the name of the module that contains exactly these modules with weights, or "first to last"."""

    def whole(name: str) -> str:
        while above := name.rpartition(".")[0]:
            if not all(each in modules for each in own if each == above or each.startswith(f"{above}.")):
                break
            name = above
        return name

    named = [name for name in modules if name in called] or modules
    ends = list(dict.fromkeys(whole(name) for name in (named[0], named[-1])))
    return " to ".join(ends)
