"""A private view of a network that cannot run as it is: a shallow copy in evaluation mode, with separate buffers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from explainers.hooks.shallow_copy import shallow_copy
from explainers.probe.modules import may_write
from explainers.unusual.buffers import GuardedBuffers, WatchedBuffers, is_clean
from explainers.unusual.gathered_copy import gathered_copy
from explainers.unusual.original_modules import guard_first_pass


def private_view(
    own: nn.Module, writing: list[nn.Module], *, is_frozen: bool = False, is_checked: bool = True
) -> tuple[nn.Module, GuardedBuffers | None]:
    """Return a copy of a network, and the guard of its buffers, of which the modules `writing` may write some.

    An exported graph (`is_frozen`) is not copied. With `is_checked`, the copy refuses to run modules of the original.
    """
    copies: dict[int, nn.Module] = {}
    network = own if is_frozen else shallow_copy(own, copies=copies)
    buffers = guard_buffers(own, writing, network, copies)
    if is_checked:
        guard_first_pass(network, own)
    return network, buffers


def gathered_view(given: nn.Module) -> tuple[nn.Module, nn.Module, GuardedBuffers | None]:
    """Return a copy of a sharded model with full parameters, the network that runs, and the guard of its buffers."""
    full, copies = gathered_copy(given), dict[int, nn.Module]()
    network = shallow_copy(full, copies=copies)
    buffers = guard_buffers(full, [module for module in full.modules() if may_write(module)], network, copies)
    guard_first_pass(network, given, sharded=True)
    return full, network, buffers


def watch_clean(owner: nn.Module, writing: list[nn.Module]) -> WatchedBuffers | None:
    """Return the watched buffers of a network that did not write to them in its last call, else None."""
    return WatchedBuffers(owner, writing) if is_clean(owner, writing) else None


def guard_buffers(
    owner: nn.Module, writing: list[nn.Module], network: nn.Module, copies: Mapping[int, nn.Module]
) -> GuardedBuffers | None:
    """Let every pass of `network` leave the buffers of these modules alone.

    It is a copy of `owner`, with the copies of modules by id of the original, or `owner` itself or a wrapper of it.
    """
    if not writing:
        return None
    modules = [copies[id(module)] for module in writing] if copies else writing
    return GuardedBuffers(owner, modules, writing, network)
