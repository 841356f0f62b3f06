"""The glossary: the words of the page in one or two plain sentences, shown at the word and in docs/glossary.md.

`python -m tests.project.test_glossary` writes the document again.
"""

from __future__ import annotations

_REMOVED = (
    "The pixels with the highest values, as a share of all pixels: they are blurred. For comparison, a region of the "
    "same shape is blurred at 19 random places."
)
GLOSSARY: dict[str, str] = {
    "% of the map": (
        "The share of the map in this part of the image, by the sum of its positive values, or of the magnitudes of a "
        "gradient."
    ),
    "AUC": (
        "The share of pairs of an image with a name and one without it in which the channel is more active on the "
        "first: 1 always, 0.5 as often as by chance."
    ),
    "baseline": "The input that counts as no information, such as a black or blurred image.",
    "brightest % of the map": _REMOVED,
    "centered blob": (
        "A bright spot in the middle of the image, the same for every image. A map that is not better may only show "
        "that photos are centered."
    ),
    "channel": "One of the many small images that a layer computes. Each responds to its own pattern.",
    "CKA": (
        "Centered kernel alignment: how similarly two layers arrange the same images. 1 means equal up to rotation "
        "and scale, 0 unrelated."
    ),
    "contribution": (
        "An estimate of how much a part of the network or of the image adds to the score of the class, in its unit."
    ),
    "controls": "Maps that do not use the network: random maps, edge maps and a centered blob. A useful map is better.",
    "crop": "The part of the image that the network receives, scaled to its input size. It does not see the rest.",
    "deletion": (
        "Pixels are deleted in the order of the map, the highest first. The faster the score falls, the better the map."
    ),
    "depends on the class": (
        "The map of another class looks different. A map that is the same for every class explains none."
    ),
    "depends on the weights": (
        "The map changes if the weights of the network are replaced by random ones, so it shows something that the "
        "network has learned."
    ),
    "edge maps": "Maps of the contours of the image. They do not use the network, but often look like an explanation.",
    "evidence": "What raises the score of the class according to the method. Another method may find other evidence.",
    "faithful": "A map is faithful if it shows what the network really uses, whether or not it looks right to people.",
    "gradient norm": (
        "How strongly the score reacts to small changes of a layer's output. It is the length of the gradient there."
    ),
    "insertion": (
        "Pixels are inserted into a blurred image in the order of the map, the highest first. The faster the score "
        "rises, the better the map."
    ),
    "jackknife": (
        "An interval from leaving out one image at a time: it shows how much the result depends on single images."
    ),
    "layer": (
        "One step of the network. Early layers see edges and textures in detail, late ones see parts of objects on a "
        "coarse grid."
    ),
    "logit": (
        "The score of a class before it becomes a probability. It has no upper limit; one more logit multiplies the "
        "odds by 2.7."
    ),
    "most positive % of the map": _REMOVED,
    "mostly noise": "Two halves of the samples give maps that hardly agree, so the details of the map are chance.",
    "no preference": (
        "The network gives nearly the same probability to all classes, so a map has no prediction to explain."
    ),
    "random maps": "Maps of random values. A map that is not better than they are says nothing about the network.",
    "rank correlation": (
        "How similar the order of two lists of values is, from −1 (opposite) over 0 (unrelated) to 1 (the same order)."
    ),
    "receptive field": "The part of the image that can affect one value of a layer.",
    "too small to interpret": "The values of the map are so small compared with the score that they hardly affect it.",
}
"""Words, in lower case apart from abbreviations, with their meaning. "%" stands for a percentage."""
