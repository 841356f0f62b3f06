"""Gradio's modules without work that changes nothing on this page.

The changes apply to the text of the modules in the bundle. A version of Gradio with another text keeps its work.
"""

from __future__ import annotations

import re

CLONE = re.compile(r"(try\{return structuredClone\(([$\w]+)\)\})")
"""Where Svelte copies one value. Gradio copies all values of a component several times per event.

A copy of a string or a number is equal to it. That of a function fails, and Svelte then uses the function itself.
"""
STATUS = re.compile(r"(async update_loading_stati_state\(\)\{)(?=await)|([$\w]+===0&&)(?=[$\w]+\.inputs\.forEach\()")
"""Where Gradio marks the inputs and outputs of an event as pending, failed or valid, after every message.

The page has its own status, and its events have no validators.
"""
TEMPLATES = re.compile(r"[$\w]+\(([$\w]+)\(\),[$\w]+,`(html|css)`\)")
"""Where the component of our scripts fills in its templates."""
RENDER = re.compile(r"queueMicrotask\(\(\)=>\{([$\w]+\([$\w]+,!1\)),([$\w]+\(\),[$\w]+\(\))\}\)")
"""Where it does that again after every change of its value: it compiles both, and replaces a style sheet.

Templates without a placeholder have the same result.
"""

LANGUAGE = re.compile(r"var [$\w]+=[$\w]+\(\([$\w]+=>\{[$\w]+\.__esModule=!0,[$\w]+\.extend=")
COMPILE = re.compile(r"([$\w]+)\.default\.compile\(")
PLAIN = "{default:{compile:text=>{if(text.includes('{{'))throw Error(text);return()=>text}}}"
"""Where that module has Handlebars, a template language (28 kB compressed); how the module uses it; and a replacement.

No template of this page has a placeholder of this language.
"""


def remove(text: str) -> str:
    """Return the text of a module without this work."""
    if templates := {kind: name for name, kind in TEMPLATES.findall(text)}:
        both = "+".join(f"({name}()||'')" for name in templates.values())
        text = RENDER.sub(rf"queueMicrotask(()=>{{\1,/[$@{{]/.test({both})&&(\2)}})", text)
    language, compile_call = LANGUAGE.search(text), COMPILE.search(text)
    if language and compile_call:
        end = text.index("=new Map", language.end())  # the first variable of the module itself
        end = text.rindex(",", 0, end)
        text = f"{text[: language.start()]}var {compile_call[1]}={PLAIN}{text[end:]}"
    text = STATUS.sub(lambda match: f"{match[1]}return;" if match[1] else f"{match[2]}!1&&", text)
    return CLONE.sub(r"if(typeof \2!=='object')return \2;\1", text)
