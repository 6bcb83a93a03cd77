"""Script that scores sentences with a learned metric.

It runs in the environment of the metric's packages, which has no t2t_flax: `python worker.py
REQUEST.json ANSWER.json`, see `process.score_sentences`.
"""

import importlib.metadata
import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any


class MissingWeightsError(Exception):
    """Error for a model that is neither a folder nor a name with available files."""


def score_comet(request: dict[str, Any]) -> dict[str, Any]:
    """Score with unbabel-comet.

    A model folder has hparams.yaml and checkpoints/model.ckpt.
    """
    import torch
    from comet import download_model, load_from_checkpoint

    folder = Path(request["model"])
    checkpoint = folder / "checkpoints" / "model.ckpt"
    if not folder.is_dir():
        try:
            checkpoint = Path(download_model(request["model"]))
        except Exception as error:
            raise MissingWeightsError(str(error)) from error
    try:
        model = load_from_checkpoint(str(checkpoint))
    except OSError as error:  # the encoder's config and tokenizer are files of another model
        raise MissingWeightsError(str(error).splitlines()[0]) from error
    gpus = int(torch.cuda.is_available())
    model.to(getattr(torch, request["precision"]))
    settings = dict(batch_size=request["batch_size"], gpus=gpus, num_workers=0, progress_bar=False)
    predicted = (
        model.predict(request["samples"], **settings) if request["samples"] else {"scores": []}
    )
    return {
        "scores": [float(score) for score in predicted["scores"]],
        "package": f"unbabel-comet {importlib.metadata.version('unbabel-comet')}",
        "device": torch.cuda.get_device_name() if gpus else "cpu",
    } | about_model(checkpoint.parent.parent)


METRICX_TOKEN = 250089
"""Id of mT5's `<extra_id_10>`, whose logit at the first position is the score.

See Juraska et al. 2023.
"""


def score_metricx(request: dict[str, Any]) -> dict[str, Any]:
    """Score with MetricX-24.

    The score is the logit of METRICX_TOKEN in the first decoding step of an mT5, clipped to 0 to
    25. Inputs have MetricX-24's form.
    """
    import torch
    from transformers import AutoTokenizer, MT5ForConditionalGeneration

    dtype = getattr(torch, request["precision"])
    try:
        tokenizer = AutoTokenizer.from_pretrained(request["tokenizer"])
        model = MT5ForConditionalGeneration.from_pretrained(request["model"], dtype=dtype)
    except OSError as error:
        raise MissingWeightsError(str(error).splitlines()[0]) from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).eval()
    texts = [
        f"source: {s['src']} candidate: {s['mt']}"
        + (f" reference: {s['ref']}" if "ref" in s else "")
        for s in request["samples"]
    ]
    scores: list[float] = [0.0] * len(texts)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), request["batch_size"]):
        chosen = order[start : start + request["batch_size"]]
        # Without the end symbol, which the model was not trained with.
        ids = [tokenizer(texts[i], truncation=True, max_length=1536).input_ids[:-1] for i in chosen]
        width = max(map(len, ids))
        padded = torch.tensor(
            [row + [tokenizer.pad_token_id] * (width - len(row)) for row in ids], device=device
        )
        mask = torch.tensor(
            [[1] * len(row) + [0] * (width - len(row)) for row in ids], device=device
        )
        first = torch.zeros(len(chosen), 1, dtype=torch.long, device=device)
        with torch.no_grad():
            logits = model(input_ids=padded, attention_mask=mask, decoder_input_ids=first).logits
        for i, score in zip(
            chosen, logits[:, 0, METRICX_TOKEN].float().clamp(0, 25).tolist(), strict=True
        ):
            scores[i] = score
    return {
        "scores": scores,
        "package": f"transformers {importlib.metadata.version('transformers')}",
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    } | about_model(Path(request["model"]))


def about_model(folder: Path) -> dict[str, str]:
    """Return the revision of a downloaded model and its licence.

    The revision comes from the name of its folder, the licence from its card.
    """
    card = folder / "README.md"
    licence = (
        re.search(r"^license:\s*(\S+)", card.read_text(errors="replace"), re.MULTILINE)
        if card.exists()
        else None
    )
    revision = folder.name[:12] if folder.parent.name == "snapshots" else ""
    return {"revision": revision, "licence": licence[1] if licence else "not stated"}


def main(asked: str, answered: str) -> None:
    """Answer the request in the file `asked`."""
    warnings.filterwarnings("ignore")
    request = json.loads(Path(asked).read_text())
    score = score_metricx if request["metric"] == "metricx" else score_comet
    try:
        answer = score(request) | {"model": request["model"], "precision": request["precision"]}
    except MissingWeightsError as error:
        answer = {"missing": str(error)}
    partial = Path(f"{answered}.partial")
    partial.write_text(json.dumps(answer))
    os.replace(partial, answered)


if __name__ == "__main__":
    main(*sys.argv[1:])
