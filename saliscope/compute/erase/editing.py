"""Apply an edit to the crop of an image and to the input of the network."""

from __future__ import annotations

from dataclasses import replace

import torch
from PIL import Image
from torch import Tensor

from explainers import BadOption, pixel_ranks
from saliscope.compute.answers import AppliedEdit, LoadedModel, Settings
from saliscope.compute.erase import messages, tensors
from saliscope.compute.erase.edit import EMPTY, NO_ORDER, NO_SECOND, Edit
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.images import uploads
from saliscope.images.decoder import pool
from saliscope.images.pixels import pixel_hash
from saliscope.zoo import Model
from saliscope.zoo.operations import to_tensor


def applied(
    edit: Edit, mask: Tensor, request: Request, settings: Settings, crop: Image.Image, images: Tensor
) -> tuple[Settings, Image.Image, Tensor]:
    """Return the settings, the crop and the input of the network after the edit of a request.

    The crop has the resolution of the network input, because the edit changes what the network receives. `mask` [H, W]
    is the region, see `mask_of`.

    Errors   Refused for an edit that cannot be applied to this image
    """
    model = settings.loaded.model
    if not bool(mask.any()) and edit.whole == type(edit.whole)():
        raise Refused(EMPTY)
    if settings.bands:
        tensors.refuse_recoloring(edit.whole)
    second_crop, second_input = _second(edit, request.second, settings)
    edited = _edit(edit, mask, images, second_input, None if settings.bands else model)
    # the crop of an image with several bands shows three of them, so the edit is applied to it as well
    shown = _edit(edit, mask, _pixels(crop, model.size), None, None) if settings.bands else _unit_values(edited, model)
    known = AppliedEdit(request.edit, pixel_hash(crop), pixel_hash(second_crop) if second_crop else "")
    return replace(settings, edit=known), tensors.to_image(shown).convert("RGB"), edited


def mask_of(edit: Edit, images: Tensor, plane: Tensor | None) -> Tensor:
    """Return the region of an edit, bool [H, W]; `plane` [h, w] is only needed if it depends on the map.

    Errors   Refused if the map has no order
    """
    ranks = order(plane, images) if edit.needs_map and plane is not None else None
    height, width = images.shape[-2:]
    return tensors.region_mask(edit.region, (height, width), ranks)


def order(plane: Tensor, images: Tensor) -> Tensor:
    """Return the position [H, W] of each pixel in the order of a map, highest first, as `smallest_region` uses it.

    Errors   Refused for a constant map and for values that are not finite
    """
    try:
        return pixel_ranks(plane[None], images)[0]
    except BadOption:
        raise Refused(NO_ORDER) from None


def cover(edit: Edit, second: str | None, settings: Settings, images: Tensor) -> Tensor:
    """Return the input of the network of which a region shows a part, for fills that do not depend on the region.

    Errors   Refused for inpainting, and without a second image
    """
    if edit.fill == "inpaint":
        raise Refused(messages.NO_INPAINTING)
    model = None if settings.bands else settings.loaded.model
    return _cover(edit.fill, images, _second(edit, second, settings)[1], model)


def _edit(edit: Edit, mask: Tensor, images: Tensor, second: Tensor | None, model: Model | None) -> Tensor:
    """Return an image [1, C, H, W] after an edit; `model` has the unit of its values if it is a photo."""
    if bool(mask.any()):
        if edit.fill == "inpaint":
            images = tensors.fill_region(images, mask, edit.fill)
        else:
            images = torch.where(mask, _cover(edit.fill, images, second, model), images)
    images = tensors.move(images, edit.whole)
    if model is not None and tensors.recolorings(edit.whole):
        images = _network_values(tensors.recolor(_unit_values(images, model), edit.whole), model)
    return images


def _cover(fill: str, images: Tensor, second: Tensor | None, model: Model | None) -> Tensor:
    """Return the image that fills a region. Noise is drawn in the range of the pixels, which the network normalizes."""
    if fill == "noise" and model is not None:
        return _network_values(tensors.cover_image(_unit_values(images, model), fill), model)
    return tensors.cover_image(images, fill, second)


def _second(edit: Edit, path: str | None, settings: Settings) -> tuple[Image.Image | None, Tensor | None]:
    """Return the crop and the input of the second image, or None if the edit does not use it.

    Errors   Refused if it is missing, cannot be opened, or if the image has several bands
    """
    if edit.fill != "image":
        return None, None
    if path is None:
        raise Refused(NO_SECOND)
    if settings.bands:
        raise Refused(messages.NO_SECOND_BANDS)
    image = pool.open_image(uploads.read(path))
    model = settings.loaded.model
    return model.crop(image), model.prepare(image)


def _pixels(crop: Image.Image, size: tuple[int, int]) -> Tensor:
    """Return an image as [1, 3, H, W] in [0, 1], at a size (height, width)."""
    return to_tensor(crop.convert("RGB").resize(size[::-1], Image.Resampling.BICUBIC))[None]


def _scale(images: Tensor, model: Model) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the preparation, [C, 1, 1], for values in [0, 1]."""
    preparation = model.preparation
    top = 255 if preparation.raw else 1
    mean, std = (images.new_tensor(values)[:, None, None] / top for values in (preparation.mean, preparation.std))
    return mean, std


def _unit_values(images: Tensor, model: Model) -> Tensor:
    """Return the input of the network in [0, 1]."""
    mean, std = _scale(images, model)
    return (images * std + mean).clamp(0, 1)


def _network_values(pixels: Tensor, model: Model) -> Tensor:
    """Return values in [0, 1] as the input of the network."""
    mean, std = _scale(pixels, model)
    return (pixels - mean) / std


def refuse_unsupported(loaded: LoadedModel) -> None:
    """Refuse networks that do not classify the whole image.

    Errors   Refused
    """
    if loaded.detects_objects:
        raise Refused(messages.ONLY_CLASSIFIERS)
