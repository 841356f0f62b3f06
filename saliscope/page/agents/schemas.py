"""JSON schemas of the results of the tools. Every result contains the required fields and no others."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def array(items: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None, *, null: bool = False) -> Schema:
    """Return the schema of an object with these fields, or null if `null` is true."""
    return {
        "type": ["object", "null"] if null else "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def described(schema: Schema, text: str) -> Schema:
    """Return a schema with a description."""
    return schema | {"description": text}


LINES: Schema = {"type": "object", "additionalProperties": TEXT}
_FOUND: Schema = record(
    {"index": {"type": ["integer", "null"]}, "name": TEXT},
    {
        "probability": NUMBER_OR_NULL,
        "score": NUMBER,
        "similarity": NUMBER,
        "share": NUMBER,
        "box": described(array(NUMBER), "left, top, right, bottom as fractions of the shown image"),
    },
    null=True,
)
EXPLANATION: Schema = record(
    {
        "model": TEXT,
        "layer": TEXT_OR_NULL,
        "method": TEXT,
        "target": described({"$ref": "#/$defs/found"}, "what the map explains; null if nothing was detected"),
        "options": OBJECT,
        "predictions": array({"$ref": "#/$defs/found"}),
        "statistics": described(OBJECT, "of the map"),
        "findings": described(
            array(record({"code": TEXT, "sentence": TEXT, "remedy": {}})),
            "what to know before you trust the map; remedy has the arguments to change",
        ),
        "verdict": described(
            record({"code": TEXT, "sentence": TEXT, "mark": TEXT}, null=True),
            "what the numbers about the map support: quote this sentence instead of describing the map",
        ),
        "bands": {"type": ["object", "null"]},
        "seconds": NUMBER,
        "device": TEXT,
        "share": described(NUMBER, "how much of a slow method was computed in the time limit, from 0 to 1"),
        "shape": described(array(INTEGER), "of the map before it is resized, without planes"),
    }
) | {"$defs": {"found": _FOUND}}
CHANNELS: Schema = record(
    {
        "model": TEXT,
        "layer": TEXT,
        "total": described(INTEGER, "channels of the layer"),
        "grid": described(array(INTEGER), "height and width of a channel"),
        "target": described(record({"index": INTEGER, "name": TEXT}, null=True), "the top class, for effect"),
        "channels": described(
            array(
                record(
                    {
                        "number": INTEGER,
                        "mean": NUMBER_OR_NULL,
                        "min": NUMBER_OR_NULL,
                        "max": NUMBER_OR_NULL,
                        "effect": described(NUMBER_OR_NULL, "score without the channel subtracted from the score"),
                    }
                )
            ),
            "in the order of the tiles, row by row",
        ),
    }
)
MODELS: Schema = record(
    {
        "default": TEXT,
        "tasks": array(record({"task": TEXT, "ready": array(TEXT), "download": array(TEXT), "failed": LINES})),
        "hidden": described(INTEGER, "other weights of these models, which filter finds"),
    },
    {
        "details": record(
            {
                "name": TEXT,
                "title": TEXT,
                "task": TEXT,
                "weights": TEXT,
                "classes": INTEGER,
                "side": described(INTEGER, "pixels of the input"),
                "channels": INTEGER,
                "megabytes": NUMBER,
                "accuracy": NUMBER_OR_NULL,
                "measure": described(TEXT, "what accuracy measures, in percent"),
                "ready": FLAG,
                "error": TEXT,
            }
        )
    },
)
LAYERS: Schema = record(
    {
        "model": TEXT,
        "default": TEXT,
        "total": INTEGER,
        "layers": array(
            record({"name": TEXT, "kind": TEXT, "shape": array(INTEGER), "grid": array(INTEGER), "stage": FLAG})
        ),
        "omitted": described(INTEGER, "further layers that match filter"),
    }
)
METHODS: Schema = record(
    {
        "model": TEXT,
        "default": TEXT,
        "groups": array(record({"title": TEXT, "methods": LINES})),
        "cautions": described(array(TEXT), "methods with a caution, which details has; filter gives their lines"),
    },
    {
        "details": record(
            {
                "name": TEXT,
                "title": TEXT,
                "family": TEXT,
                "returns": TEXT,
                "paper": TEXT,
                "summary": TEXT,
                "caution": TEXT,
                "takes_layer": FLAG,
                "options": array(
                    record(
                        {"name": TEXT, "default": {}, "kind": TEXT, "help": TEXT},
                        {
                            "low": NUMBER,
                            "high": NUMBER,
                            "step": NUMBER,
                            "choices": array(TEXT),
                            "pair": described(FLAG, "a pair [height, width] is accepted too"),
                        },
                    )
                ),
            }
        )
    },
)
