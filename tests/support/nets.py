"""Small seeded networks with the pitfalls of real ones: reused in-place ReLUs, skips, tokens, tuple outputs."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers import Layer
from explainers.call.run import open_run

# Networks this small run faster on one thread, and other processes may want the other cores.
torch.set_num_threads(1)


def settle(net: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter and running statistic a seeded, non-trivial value; returns `net` in eval mode."""
    generator = torch.Generator().manual_seed(seed)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)

    with torch.no_grad():
        for parameter in net.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
            parameter.copy_(draw(parameter) * (math.sqrt(2 / fan_in) if parameter.dim() > 1 else 0.1))
        for module in net.modules():
            if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)) and module.weight is not None:
                module.weight.add_(1)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(0.1 * draw(module.running_mean))
                module.running_var.copy_(1 + 0.3 * draw(module.running_var).abs())
    return net.eval()


def random_images(n: int = 3, channels: int = 3, height: int = 12, width: int = 16, *, seed: int = 7) -> Tensor:
    """`n` seeded images, not square, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, channels, height, width, generator=generator, dtype=torch.float64)


def plain(channels: int = 3, classes: int = 7, inplace: bool = False) -> nn.Sequential:
    """Two convolutions with their own ReLU modules, average pool, linear head: everything has a closed form."""
    net = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 3, padding=1),
            relu1=nn.ReLU(inplace),
            conv2=nn.Conv2d(6, 8, 3, stride=2, padding=1),
            relu2=nn.ReLU(inplace),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=nn.Linear(8, classes),
        )
    )
    return settle(net.double())


def curved(channels: int = 3, classes: int = 7) -> nn.Sequential:
    """Smooth, with a nonlinear, position-dependent head, so that gradients differ by cell."""
    net = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 3, padding=1),
            act1=nn.Softplus(),
            conv2=nn.Conv2d(6, 8, 3, stride=2, padding=1),
            act2=nn.Tanh(),
            pool=nn.AdaptiveAvgPool2d((2, 3)),
            flat=nn.Flatten(),
            hidden=nn.Linear(48, 10),
            act3=nn.Tanh(),
            head=nn.Linear(10, classes),
        )
    )
    return settle(net.double())


class Block(nn.Module):
    """A residual block that runs one in-place ReLU twice, as torchvision's BasicBlock does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Residual(nn.Module):
    """Stem, two residual stages, pool, head; `pause1` and `pause2` after the stages return what they get."""

    def __init__(self, channels: int = 3, classes: int = 7, width: int = 6) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = Block(width)
        self.pause1 = nn.Identity()
        self.maxpool = nn.MaxPool2d(2)
        self.layer2 = Block(width)
        self.pause2 = nn.Identity()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.pause1(self.layer1(x))
        x = self.pause2(self.layer2(self.maxpool(x)))
        return self.fc(self.avgpool(x).flatten(1))


def residual(channels: int = 3, classes: int = 7) -> Residual:
    return settle(Residual(channels, classes).double())  # type: ignore[return-value]


class Cubic(nn.Module):
    """scores_k = sum a_k x^3 + sum b_k x shifted(x): integrated gradients from zero have the closed form below."""

    def __init__(self, shape: tuple[int, int, int], classes: int = 4) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(classes, *shape))
        self.b = nn.Parameter(torch.zeros(classes, *shape))

    def forward(self, x: Tensor) -> Tensor:
        pairs = x * x.roll(1, dims=3)
        return torch.einsum("nchw,kchw->nk", x**3, self.a) + torch.einsum("nchw,kchw->nk", pairs, self.b)

    def integrated(self, x: Tensor, classes: list[int]) -> Tensor:
        pairs = self.b[classes] * x * x.roll(1, dims=3)
        return (self.a[classes] * x**3 + 0.5 * (pairs + pairs.roll(-1, dims=3))).detach()


class Weighted(nn.Module):
    """A linear model on pixels: scores = W x + bias."""

    def __init__(self, shape: tuple[int, int, int], classes: int = 3) -> None:
        super().__init__()
        self.fc = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


class LinearScore(nn.Module):
    """Two scores in float64: the sum of w x, and zero. The exact map is w (x - baseline)."""

    def __init__(self, *shape: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        score = (x * self.weight).flatten(1).sum(1)
        return torch.stack([score, torch.zeros_like(score)], 1)


class Uniform(nn.Module):
    """A 1x1 convolution of a constant image: activation 1, head weight +-1, so the true Grad-CAM is +-1/(h w)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            self.conv.weight.fill_(1.0)
            self.conv.bias.zero_()
            self.fc.weight.copy_(torch.tensor([[1.0], [-1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.conv(x)).flatten(1))


class Twice(nn.Module):
    """One convolution that runs twice, and one ReLU that runs three times."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(self.conv(x))
        x = self.relu(self.conv(x[:, :, ::2, ::2]))
        return self.fc(self.end(x).mean((2, 3)))

    def end(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


class Reused(Twice):
    """`Twice` without its tanh: one convolution and one in-place ReLU used again, all piecewise linear."""

    def end(self, x: Tensor) -> Tensor:
        return x


class DictNet(nn.Module):
    """Scores a pixel under the key 'out', as torchvision's segmentation networks give them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain()[:4]
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        scores = self.last(self.net(x))
        return {"out": F.interpolate(scores, x.shape[2:], mode="bilinear"), "aux": scores}


class Activated(nn.Module):
    """conv, activation (any callable), conv, activation, pool, head; the activation may be functional."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.fc = nn.Linear(8, 7)
        if isinstance(act, nn.Module):
            self.act = act
        else:
            object.__setattr__(self, "act", act)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv1(x))
        x = self.act(self.conv2(x))
        return self.fc(x.mean((2, 3)))


class Encoder(nn.Module):
    """A pre-norm transformer block whose parts can be addressed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ClassToken(nn.Module):
    """Two transformer blocks with a class token, for any image size: 32x128 px give 2x8 = 16 tokens."""

    def __init__(self, grid: tuple[int, int] = (2, 8), width: int = 8, patch: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, grid[0] * grid[1] + 1, width))
        self.blocks = nn.Sequential(Encoder(width), Encoder(width))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.head(self.ln(self.blocks(tokens))[:, 0])


class Written(nn.Module):
    """Modules, and the function that runs them: `forward(self, x)`."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = [forward]
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Any:
        return self.function[0](self, x)


def act_grad(model: nn.Module, layer: nn.Module, x: Tensor, classes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """By hand: the layer's output, d sum of class scores / d output, scores. The hook returns a clone."""
    box: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        box.append(output)
        return output.clone()

    handle = layer.register_forward_hook(hook)
    try:
        scores = model(x.detach().clone().requires_grad_())
    finally:
        handle.remove()
    (gradient,) = torch.autograd.grad(sum(scores[i, c] for i, c in enumerate(classes)), box[0])
    return box[0].detach(), gradient, scores.detach()


def as_maps(tensor: Tensor, layer: Layer) -> Tensor:
    """A layer's tensor by hand: tokens dropped, rows before columns, channels second."""
    if layer.layout == "tokens":
        return tensor[:, layer.extra_tokens :][:, : math.prod(layer.grid)].mT.unflatten(2, layer.grid)
    return tensor.movedim(-1, 1) if layer.layout == "NHWC" else tensor


def cam_by_hand(model: nn.Module, layer: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Signed Grad-CAM from `act_grad`."""
    a, g, _ = act_grad(model, layer, x, classes)
    return (g.mean((2, 3), keepdim=True) * a).sum(1)


class Scaled(nn.Module):
    """`curved` for images in other units: it divides by `scale` first."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.net, self.scale = curved(), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x / self.scale)


def check_once(model: nn.Module, images: Tensor) -> None:
    """Run the passes that check and profile a model once; tests that record passes start after them."""
    with open_run(model, images, several=True, cost={}):
        pass


def top(model: nn.Module, x: Tensor) -> list[int]:
    with torch.no_grad():
        return model(x).argmax(1).tolist()


def rel(a: Tensor, b: Tensor) -> float:
    """Relative error ||a - b|| / ||b||."""
    return float((a.double() - b.double()).norm() / b.double().norm())
