"""Write the reference pages docs/api.md (Python API) and docs/keys.md (config keys).

python -m tools.reference
"""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
API = """# Python API

Train, evaluate and translate from Python. Generated from the docstrings by
`python -m tools.reference`; a test keeps it current.

```python
import t2t_flax

run = t2t_flax.load("runs/toy")
print([t.text for t in run.translate(["The train leaves on Friday at 3:45 PM."])])
print(run.score([("It is late.", "Es ist spät.")])[0].log_prob)
```

"""


KEYS = """# Config keys

Look up the meaning of a key. `--config.GROUP.KEY=VALUE` sets it on the command line,
`c.group.key = value` in a config file; `explain --config=... --keys` shows the values of a config.
Numbers in brackets are sections of the paper. A key that is read only with certain values of other
keys says so, and is refused without them. Generated from the code by `python -m tools.reference`;
a test keeps it current.
"""


def pages() -> dict[str, str]:
    """Return the text of each generated page of docs/ by its name."""
    return {"api.md": api(), "keys.md": keys()}


def keys() -> str:
    """Return the page of all keys, a table for each group, the core's first."""
    from t2t_flax.config.keys import OF_USER, type_name
    from t2t_flax.config.schema import conditions, fields

    text, group = KEYS, ""
    for name, key in fields().items():
        if name.split(".")[0] != group:
            group = name.split(".")[0]
            text += f"\n## {group}\n\n| key | default | type | meaning |\n|---|---|---|---|\n"
        meaning = key.metadata["doc"]
        if key.metadata["kind"] in OF_USER:
            meaning += ". Never taken from a stored config"
        if needed := conditions().get(name):
            meaning += f". Read with {' and '.join(when.text for when in needed)}"
        unit = f" {key.metadata['unit']}" if key.metadata["unit"] else ""
        row = f"`{name}`", f"`{key.default!r}`{unit}", type_name(key), meaning
        text += "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n"
    return text


def api() -> str:
    """Return the page of the Python API."""
    from t2t_flax import api
    from t2t_flax.decoding.translator import Hypothesis, Translation
    from t2t_flax.evaluation.restore import TrainedModel
    from t2t_flax.evaluation.scoring import PairScore

    parts = [API + _docstring(api).split("\n\n", 1)[1], "\n\n## Functions\n\n"]
    for name in ("train", "prepare", "evaluate", "load", "explain"):
        parts.append(_entry(f"t2t_flax.{name}", getattr(api, name)))
    parts.append("\n## Results\n\n")
    for cls, methods in (
        (api.TrainResult, ()),
        (TrainedModel, ("translate", "score", "steps")),
        (Translation, ()),
        (Hypothesis, ()),
        (PairScore, ()),
    ):
        fields = [f"`{name}: {_type(kind)}`" for name, kind in inspect.get_annotations(cls).items()]
        parts.append(_item(f"**{cls.__name__}**", _docstring(cls), f"Fields: {', '.join(fields)}."))
        entries = "".join(_entry(name, getattr(cls, name)) for name in methods)
        parts.append(textwrap.indent(entries, "  "))
    return "".join(parts)


def _entry(name: str, member: Any) -> str:
    """Its signature and, indented below, its docstring."""
    shown = name if isinstance(member, property) else f"{name}{_signature(member)}"
    return _item(f"`{shown}`", _docstring(member))


def _item(head: str, *paragraphs: str) -> str:
    lines = (line for paragraph in paragraphs for line in paragraph.splitlines() if line)
    return f"- {head}:\n" + "".join(f"  {line}\n" for line in lines)


def _signature(function: Any) -> str:
    text = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()")
    text = re.sub(r"<built-in method (\w+) of str object at 0x\w+>", "...", text)
    return _short(text)


def _type(annotation: Any) -> str:
    return _short(
        annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    )


def _short(text: str) -> str:
    """Annotations without quotes and module paths."""
    return re.sub(r"(?:[a-z_0-9]+\.)+(?=[A-Z])", "", re.sub(r"(: |-> )'([^']*)'", r"\1\2", text))


def _docstring(member: Any) -> str:
    return inspect.cleandoc(member.__doc__ or "")


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
