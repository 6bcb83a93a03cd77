"""`python -m t2t_flax.planning.worker`: one compilation in a process of its own, whose JAX was told beforehand what it
is to compile for. Reads a request as JSON from standard input and writes the answer to the file that it names.
"""

import json
import sys
import traceback
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.data.batching.batches import Shape
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """`parts`: of "train", "decode"; without any, the formula's figures alone. The shape of the batch is that of
    `store`, or of `rows` rows on each device, or else the estimate.
    """
    from t2t_flax.planning import compiled, formula, topology

    config = config_lib.from_json(request["config"])
    subject = compiled.assemble(config, topology.parse(request["topology"]), tuple(request["vocab"]))
    shape = _shape(config, subject.shards, request)
    out: dict[str, Any] = {"mesh": dict(subject.mesh.shape)} | formula.facts(subject, shape)
    if "train" in request["parts"]:
        out["train"] = compiled.train_step(subject, shape)
    if "decode" in request["parts"] and config.decode.strategy == "beam":
        out["decode"] = compiled.decode_step(subject)
    return out


def _shape(config: config_lib.Config, shards: int, request: dict[str, Any]) -> Shape:
    from t2t_flax.planning import shapes

    if request.get("store"):
        return shapes.of_store(config, TokenStore.open(request["store"]), shards)
    if request.get("rows"):
        return Shape(shapes.estimated(config, shards).length, request["rows"] * shards, 1)
    return shapes.estimated(config, shards)


def main() -> int:
    request = json.load(sys.stdin)
    try:
        found = answer(request)
    except UserError as error:
        found = {"user_error": str(error)}
    except Exception:
        found = {"failure": traceback.format_exc()}
    atomic_write(request["answer"], json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
