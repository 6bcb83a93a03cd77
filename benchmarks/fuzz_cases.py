"""The cases of the fuzz drill: each a function of (seed, number)."""

# ruff: noqa: E501

import dataclasses
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

ODD = (
    "", " ", "nan", "inf", "-inf", "-1", "0", "-0.0", "1e400", "9" * 30, "9" * 5000, "4294967296", "18446744073709551616",
    "1e-45", "0x10", "None", "none", "true", "[]", "{}", "(1,2)", "1,2,3", "(nan, 0)", "ü", "日本語", "\udcff", "a\nb", "\x1b[31m",
    "a" * 300, "a" * 5000, "..", ".", "~", "%s%n", "{0}", "$(x)", "--", "-", "=", "=x", ",", "a,b", ";", "a.en,a.de", "a.en,missing",
    "missing.tsv", "a.tsv", "toy:train:0", "toy:nowhere", "toy:test:3", "tfds:", "run", "foreign", "run/config.json", "١٢", "1_0",
    "\u202e", "e" * 70 + "\u0301",
)  # fmt: skip
PYTHON = (
    "float('nan')", "float('inf')", "10**400", "10**5000", "-1", "0", "'x'", "''", "b'x'", "None", "[]", "[1, 2]", "(0, 5)", "{}",
    "{'a': 1}", "object()", "lambda: 0", "True", "1.5", "'\\0'", "'\\udcff'", "1j", "range(3)", "type", "2**64", "-0.0", "1e-400",
)  # fmt: skip
BODIES = (
    b"", b"\x00", b"\xff\xfe\x00", b"def get_config(:", b"raise SystemExit(0)", b"raise KeyboardInterrupt2", b"1/0", b"get_config = 3",
    b"def get_config():\n    return None\n", b"def get_config():\n    return 3\n", b"def get_config():\n    return {'model': 3}\n",
    b"def get_config():\n    return {3: {}}\n", b"def get_config():\n    return {'model': {3: 4}}\n", b"def get_config():\n    return []\n",
    b"def get_config():\n    return get_config()\n", b"import sys\ndef get_config():\n    sys.exit(5)\n", b"import nowhere\n",
    b"def get_config(a, b):\n    return {}\n", b"def get_config():\n    return {}\n", "x = 'ü'".encode("latin-1"), b"\tx = 1\n y = 2\n",
    b"def get_config():\n    import ml_collections\n    return ml_collections.ConfigDict({'model': {'d_model': 7}})\n",
)  # fmt: skip
FLAGS = (
    "--config", "--workdir", "--output", "--step", "--average", "--split", "--n_best", "--input", "--source", "--target", "--tokens",
    "--table", "--last", "--steps", "--seeds", "--set", "--parallel", "--topology", "--diff", "--keys", "--help",
    "--scores", "--prefix", "--presets", "--baseline", "--score", "--retries", "--stack", "--extend", "--report", "--best", "-h", "-x",
)  # fmt: skip
_PRESETS = ("aiayn_base", "wu2021_tiny", "mlperf_big", "t2t_v3")
# How often each: most cases must end without starting JAX.
COMMANDS = {
    "explain": 44, "train": 14, "prepare": 7, "sweep": 11, "plan": 7, "evaluate": 6, "translate": 4, "score": 3, "attend": 2,
    "average": 3, "": 1,
}  # fmt: skip
SAFE = {
    "decode.beam_size": ("1", "3"), "decode.n_best": ("1", "2"), "decode.alpha": ("0", "10"), "decode.early_stopping": ("beam_full", "top_finished"),
    "decode.strategy": ("greedy", "sample"), "decode.top_k": ("1", "100000"), "decode.top_p": ("1e-6", "0.5"), "decode.seed": ("-5", "1" * 18),
    "decode.temperature": ("1e-4", "1e4"), "decode.max_length_ratio": ("0", "2"), "decode.max_length_offset": ("0", "3"), "decode.batch_size": ("1", "3"),
    "decode.max_source_length": ("2", "5"), "decode.length_penalty": ("none", "power"), "mesh.data": ("1", "2"), "mesh.fsdp": ("2",),
    "eval.bootstrap_samples": ("0", "3"), "data.test": ("toy:test:2", "a.en,a.de", "a.tsv"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A command with the files that it finds. damage: what is done to the run before. overwrites: files it may replace."""

    kind: str
    argv: list[str]
    files: dict[str, bytes]
    stdin: bytes = b""
    damage: Callable[[Path], None] | None = None
    overwrites: tuple[str, ...] = ()


def make_case(seed: int, number: int) -> Case:
    """Case `number` of this seed."""
    rng = random.Random(f"{seed}/{number}")
    command = rng.choices(list(COMMANDS), list(COMMANDS.values()))[0]
    files: dict[str, bytes] = {}
    argv, kind = [command], "flags"
    if command == "":
        argv = rng.choice(
            [[], [rng.choice(ODD)], ["-h"], ["--help"], ["trian"], ["explain.x"], [rng.choice(ODD), "--config=x"]]
        )
        return Case("no command", argv, files)
    if command in ("explain", "train", "prepare", "sweep", "plan"):
        kind, given = _config(rng, files)
        argv += given + _rest(rng, command)
    else:
        kind, given = _with_run(rng, command, files)
        argv += given
    if kind != "whole run" and rng.random() < 0.35:
        kind, argv = f"{kind}, mutated", [command, *_mutated(rng, argv[1:])]
    damage = None
    if "run" in " ".join(argv) and rng.random() < 0.5:
        kind, damage = f"{kind}, damaged run", _damage(rng)
    return Case(kind, argv, files, stdin=_text(rng), damage=damage, overwrites=tuple(files))


def _keys() -> list[str]:
    from t2t_flax.config.schema import fields

    return list(fields())


def _key(rng: random.Random) -> str:
    key = rng.choice(_keys())
    if rng.random() < 0.12:
        place = rng.randrange(len(key))
        key = key[:place] + rng.choice(["", ".", "x", "ü", "=", " "]) + key[place + 1 :]
    return key


def _value(rng: random.Random, key: str) -> str:
    from t2t_flax.config.schema import fields

    item = fields().get(key)
    if item and rng.random() < 0.4:
        meta = item.metadata
        choices = [*meta["choices"], meta["low"], meta["high"], item.default]
        choices += [
            meta["low"] - 1 if meta["low"] is not None else 3,
            meta["high"] + 1 if meta["high"] is not None else 2,
        ]
        return str(rng.choice(choices))
    return rng.choice(ODD)


def _config(rng: random.Random, files: dict[str, bytes]) -> tuple[str, list[str]]:
    """A config, mostly mistaken; what is not is stopped by data that is not there, so that nothing trains for long."""
    roll = rng.random()
    overrides = []
    for _ in range(rng.randint(0, 3)):
        key = _key(rng)
        overrides.append(f"--config.{key}={_value(rng, key)}")
    if roll < 0.45:
        kind, config = "override", rng.choice(_PRESETS)
    elif roll < 0.65:
        kind, config = "config file", "c.py"
        files["c.py"] = rng.choice(BODIES)
    elif roll < 0.85:
        kind, config = "config file with odd values", "c.py"
        lines = [
            "from t2t_flax.config import default_config",
            "def get_config(variant=''):",
            "    c = default_config()",
        ]
        for _ in range(rng.randint(1, 3)):
            lines.append(f"    c.{rng.choice(_keys())} = {rng.choice(PYTHON)}")
        files["c.py"] = "\n".join([*lines, "    return c", ""]).encode()
        config = rng.choice(["c.py", "c.py:x", "c.py:", "./c.py"])
    elif roll < 0.95:
        kind, config = "stored config", "c.json"
        files["c.json"] = _json(rng)
    else:
        kind, config = "no config", rng.choice([*ODD, "run", "foreign/config.json", "aiayn", "a.en", "a.tsv:x"])
    # No case asks TFDS for data: that would go to the network.
    texts = [f"--config.data.{split}=a.tsv" for split in ("train", "valid", "test")] if config in _PRESETS else []
    return kind, [f"--config={config}", *texts, *overrides]


def _json(rng: random.Random) -> bytes:
    from t2t_flax.config import Config, to_json

    values = json.loads(to_json(Config()))
    for _ in range(rng.randint(0, 3)):
        group = rng.choice(list(values))
        odd = rng.choice([None, [], {}, -1, 1e308, "", "x", True, [[]], 10**30])
        if isinstance(values[group], dict) and values[group] and rng.random() < 0.8:
            values[group][rng.choice(list(values[group]))] = odd
        else:
            values[group] = odd
    text = json.dumps(values).encode()
    return rng.choice(
        [text, text, text, text[: len(text) // 2], b"", b"[]", b"3", b"\xff", b"[" * 100_000, b"{}", text + b"}"]
    )


def _rest(rng: random.Random, command: str) -> list[str]:
    """The other flags of a command that takes a config. Text that is not there comes last, so that it wins."""
    nowhere = "--config.data.train=nowhere.en,nowhere.de"
    workdir = f"--workdir={rng.choice(['new', 'new/deep', 'foreign', 'run', 'a.en', '.', 'a.en/below', 'ü', 'run/checkpoints'])}"
    if command == "explain":
        return rng.choice(
            [
                ["--keys"],
                ["--keys"],
                ["--diff=aiayn_base"],
                [f"--diff={rng.choice(ODD)}"],
                ["--presets"],
                ["--keys", workdir],
            ]
        )
    if command == "plan":
        return [
            f"--topology={rng.choice([*ODD, 'v5e-3', 'v9-1', 'cpu:0', 'gpu:h100x', '0xv5e-16', 'v5p:1x1', 'v5p:4x4x9999999'])}"
        ]
    if command == "sweep":
        key = _key(rng)
        values = ",".join(_value(rng, key) for _ in range(rng.randint(0, 3)))
        more = [f"--set={key}={values}"] if rng.random() < 0.6 else []
        more += [
            f"--{rng.choice(['seeds', 'jobs', 'stack', 'retries', 'baseline', 'score'])}={rng.choice(ODD)}"
        ] * rng.randint(0, 1)
        return [nowhere, workdir, *more, "--dry-run"]
    if rng.random() < 0.04:  # one that trains an update
        return [
            "--config=run/config.json",
            "--config.train.steps=3",
            f"--workdir={rng.choice(['new', 'run', 'foreign'])}",
        ]
    texts = [
        nowhere,
        nowhere,
        "--config.data.train=a.en,a.de,a.en",
        "--config.data.train=foreign,a.en",
        "--config.data.train=toy:x",
    ]
    return [rng.choice(texts), workdir]


def _with_run(rng: random.Random, command: str, files: dict[str, bytes]) -> tuple[str, list[str]]:
    """A command on a trained run; one in seven has nothing but valid words, so that the run is restored and used."""
    whole = rng.random() < 0.15
    workdir = (
        "run"
        if whole or rng.random() < 0.6
        else rng.choice(["missing", "foreign", "a.en", ".", "", "ü", "run/eval", "run/checkpoints"])
    )
    argv = [f"--workdir={workdir}"]
    for name in ("lines", "other"):
        files[name] = _text(rng)
    argv += {
        "evaluate": ["--split=test"],
        "translate": ["--input=lines"],
        "score": ["--source=lines", "--target=other"],
        "attend": ["--source=the dog sleeps .", "--target=der Hund", "--output=maps.npz"],
        "average": ["--last=2", "--output=mean"],
    }[command]
    if not whole and rng.random() < 0.6:
        key = _key(rng)
        argv.append(f"--config.{key}={_value(rng, key) if rng.random() < 0.5 else rng.choice(ODD)}")
        if key in (
            "mesh.cpu_devices",
            "decode.beam_size",
            "decode.n_best",
            "decode.batch_size",
            "decode.max_length_offset",
        ):
            argv.pop()  # large ones are right, and slow
    else:
        key = rng.choice(list(SAFE))
        argv.append(f"--config.{key}={rng.choice(SAFE[key])}")
    if not whole and rng.random() < 0.5:
        flag = rng.choice(
            [
                "step",
                "average",
                "n_best",
                "split",
                "prefix",
                "table",
                "steps",
                "last",
                "tokens",
                "scores",
            ]
        )
        argv.append(f"--{flag}={rng.choice([*ODD, '1', '2', '3', 'lines', 'run/config.json', 'a.en', 'foreign'])}")
    return "whole run" if whole else "run", argv


def _mutated(rng: random.Random, argv: list[str]) -> list[str]:
    argv = list(argv)
    for _ in range(rng.randint(1, 2)):
        place = rng.randrange(len(argv) + 1)
        kept = argv[place : place + 1] and argv[place].startswith(
            ("--dry-run", "--config.data.train", "--output", "--workdir")
        )
        roll = rng.random()
        if roll < 0.25 and not kept:
            del argv[place : place + 1]
        elif roll < 0.45:
            argv.insert(place, rng.choice(FLAGS))
        elif roll < 0.6:
            argv.insert(place, rng.choice(ODD))
        elif roll < 0.75 and argv:
            argv.append(rng.choice(argv))
        elif roll < 0.9 and argv[place : place + 1] and "=" in argv[place] and not kept:
            argv[place : place + 1] = argv[place].split("=", 1)
        elif argv[place : place + 1] and not kept:
            argv[place] = argv[place][: rng.randrange(len(argv[place]) + 1)]
        else:
            argv.insert(
                place,
                rng.choice(
                    ["--config.", "--config.=1", "--config.a.b.c=1", "--config.model=3", "--config=", "--config.data"]
                ),
            )
    return argv


def _text(rng: random.Random) -> bytes:
    lines = [
        b"the dog sleeps .", b"", b" ", b"\xff\xfe", b"\x00", "日本 ü\u2028x".encode(), b"a" * 3000, b"a\tb", b"\r", b"</s> <unk> <0x41>",
        b"\xef\xbb\xbfthe dog", bytes(rng.randrange(256) for _ in range(20)),
    ]  # fmt: skip
    text = b"\n".join(rng.choices(lines, [8, 2, 1, 1, 1, 2, 1, 2, 1, 1, 1, 1], k=rng.randint(0, 6)))
    return rng.choice([text, text, text + b"\n", gzip.compress(text), gzip.compress(text)[:-5]])


def _damage(rng: random.Random) -> Callable[[Path], None]:
    pick, how, junk = (
        rng.random(),
        rng.choice(["empty", "cut", "flip", "remove", "folder", "junk", "zero"]),
        rng.randbytes(50),
    )

    def damage(run: Path) -> None:
        paths = sorted(p for p in run.rglob("*") if p.is_file() and "tensorboard" not in p.parts)
        top = [p for p in paths if p.parent == run or p.parent.name in ("tokenizer", "eval")]
        chosen = top if pick < 0.5 else paths
        path = chosen[int(pick * 1000) % len(chosen)]
        data = path.read_bytes()
        if how == "remove":
            path.unlink()
        elif how == "folder":
            path.unlink()
            path.mkdir()
        else:
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :] if data else b"x"
            path.write_bytes(
                {"empty": b"", "cut": data[:middle], "flip": flipped, "junk": junk, "zero": bytes(len(data))}[how]
            )

    return damage
