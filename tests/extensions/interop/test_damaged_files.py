"""Damaged and hostile files of models: each reader refuses them in one line that names the file."""

import io
import json
import shutil
import struct
import zipfile

import numpy as np
import pytest
from helpers.refusals import refused, refused_command
from safetensors import safe_open
from safetensors.numpy import save_file

from t2t_flax.evaluation.restore import load, stored_config
from t2t_flax.extensions.interop.ctranslate2_file import read_model_bin, read_npz, read_tokens
from t2t_flax.extensions.interop.import_model import read_model
from t2t_flax.extensions.interop.imported import NamedArrays
from t2t_flax.model_forms import run_folder


@pytest.fixture(scope="module")
def toy_file():
    """(folder, metadata, arrays) of the model of the package."""
    folder = run_folder("pretrained:toy")
    with safe_open(folder / "model.safetensors", "numpy") as file:
        return folder, file.metadata(), {name: file.get_tensor(name) for name in file.keys()}


def own_folder(path, toy_file, changes, more_arrays=()):
    """A copy; a change to None removes the key, one of `checkpoint` changes its keys."""
    folder, metadata, arrays = toy_file
    shutil.copytree(folder / "tokenizer", path / "tokenizer")
    if isinstance(changes.get("checkpoint"), dict):
        changes = {
            "checkpoint": json.dumps(json.loads(metadata["checkpoint"]) | changes["checkpoint"])
        }
    metadata = {key: value for key, value in (metadata | changes).items() if value is not None}
    save_file(arrays | dict(more_arrays), path / "model.safetensors", metadata=metadata)
    return path


NO_STEPS = (["../../../evil"], 5, [], [1.5], [True], [-1], None)
"""Records are named after the steps."""


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        *(({"checkpoint": {"steps": steps}}, ("steps",)) for steps in NO_STEPS),
        *(({"config": text}, ("config",)) for text in (None, "{", "[" * 100_000, "[]")),
        ({"checkpoint": "[]"}, ("checkpoint",)),
        ({"checkpoint": {"tokenizer": 5}}, ("tokenizer", "5")),
        ({"checkpoint": {"dtype": []}}, ("dtype", "[]", "float32")),
    ],
)
def test_metadata_of_our_own_format(toy_file, changes, names, tmp_path):
    folder = own_folder(tmp_path, toy_file, changes)
    for read in (read_model, stored_config):
        with refused("model.safetensors", *names):
            read(folder)


def test_an_array_within_another_one(toy_file, tmp_path):
    name = next(iter(toy_file[2]))
    for number, clash in enumerate((f"{name}/inner", name.rpartition("/")[0])):
        (tmp_path / str(number)).mkdir()
        with refused("model.safetensors"):
            read_model(
                own_folder(tmp_path / str(number), toy_file, {}, {clash: np.zeros(1, np.float32)})
            )


def zip_of(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def damaged_deflate():
    data = bytearray(zip_of({"a.npy": npy(np.arange(1000.0))}))
    data[100:400] = bytes(300)
    return bytes(data)


ARCHIVES = {
    "empty": lambda: b"",
    "no archive": lambda: b"no archive",
    "an array alone": lambda: npy(np.zeros(3)),
    "damaged deflate": damaged_deflate,
    "no array": lambda: zip_of({"a.txt": b"text"}),
    "header without end": lambda: zip_of({"a.npy": npy(np.zeros(3))[:40]}),
    "header is no header": lambda: zip_of(
        {"a.npy": npy(np.zeros(3)).replace(b"{'descr'", b"{{{{{{{{")}
    ),
    "shape of another size": lambda: zip_of({"a.npy": npy(np.zeros(3)).replace(b"(3,)", b"(9,)")}),
    "objects": lambda: zip_of({"a.npy": npy(np.array([{}], object))}),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_numpy_archives(kind, tmp_path):
    (tmp_path / "weights.npz").write_bytes(ARCHIVES[kind]())
    with refused("weights.npz", "NumPy"):
        read_npz(tmp_path / "weights.npz")


def test_an_archive_that_would_fill_the_memory_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "weights.npz"
    np.savez_compressed(path, a=np.zeros(4_000_000, np.float32))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    with refused("weights.npz", "16,000,1"):
        read_npz(path)


def text(name):
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def model_bin(*arrays):
    """Of (name, shape, number of the type, bytes)."""
    out = [struct.pack("<I", 6), text("TransformerSpec"), struct.pack("<II", 7, len(arrays))]
    for name, shape, kind, data in arrays:
        out += [
            text(name),
            struct.pack(f"<B{len(shape)}I", len(shape), *shape),
            struct.pack("<BI", kind, len(data)),
            data,
        ]
    return b"".join(out) + struct.pack("<I", 0)


@pytest.mark.parametrize(
    ("arrays", "names"),
    [
        ([("x", [1] * 70, 0, bytes(4))], ("70 dimensions",)),
        ([("x", [2, 3], 1, bytes(6)), ("x_scale", [5], 0, bytes(20))], ("'x'", "(5,)", "(2, 3)")),
        ([("x", [2], 1, bytes(2)), ("x_scale", [2, 1, 1], 0, bytes(8))], ("'x'", "(2,)")),
    ],
)
def test_arrays_of_a_model_bin(arrays, names, tmp_path):
    (tmp_path / "model.bin").write_bytes(model_bin(*arrays))
    with refused("model.bin", *names):
        read_model_bin(tmp_path / "model.bin")


@pytest.mark.parametrize(
    "array", [np.zeros(0), np.array(["a"]), np.array([np.nan]), np.zeros(1, "V3")]
)
def test_arrays_that_are_no_numbers(array, tmp_path):
    arrays = NamedArrays(tmp_path / "weights.npz", {"a": array}, "")
    with refused("weights.npz", "'a'"):
        arrays.scalar("a", 0)
    if array.dtype.kind != "f":
        with refused("weights.npz", "'a'"):
            arrays.take("a", 1)


SIZES = ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim")
HEADS = ("encoder_attention_heads", "decoder_attention_heads")
MARIAN = dict.fromkeys(SIZES, 8) | dict.fromkeys(HEADS, 2) | dict(
    model_type="marian", vocab_size=4, pad_token_id=0, eos_token_id=1, activation_function="relu"
)  # fmt: skip


BOOLEANS = ("scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings")


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config", HEADS[0], 0),
        ("config", "encoder_layers", True),
        ("config", "pad_token_id", -1),
        ("config", "activation_function", []),
        ("config", "decoder_start_token_id", [3]),
        ("config", "dropout", "0.1"),
        *(("config", key, "false") for key in BOOLEANS),
        ("generation_config", "num_beams", [4]),
        ("generation_config", "renormalize_logits", "false"),
        ("generation_config", "forced_bos_token_id", 7),  # where Transformers 5 writes it
        ("tokenizer_config", "pad_token", ["<pad>"]),
        ("tokenizer_config", "separate_vocabs", "false"),
        ("tokenizer_config", "source_lang", ["en"]),
    ],
)
def test_settings_of_marian(file, key, value, tmp_path):
    """Without weights: what is refused here is refused before them."""
    files = {"config": MARIAN, "generation_config": {}, "tokenizer_config": {}}
    files[file] = files[file] | {key: value} | ({HEADS[1]: 0} if key == HEADS[0] else {})
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with refused(f"{file}.json", key):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unk_token", ["a"]),
        ("eos_token", {}),
        ("layer_norm_epsilon", "small"),
        ("add_source_eos", "false"),
        ("add_source_bos", "false"),
    ],
)
def test_settings_of_ctranslate2(key, value, tmp_path):
    (tmp_path / "model.bin").write_bytes(model_bin())
    (tmp_path / "config.json").write_text(json.dumps({key: value}))
    with refused("config.json", key):
        read_model(tmp_path)


def test_no_length_penalty_is_the_default_of_marian():
    from t2t_flax.extensions.interop.marian_import import decode_keys

    assert [decode_keys(MARIAN, {"length_penalty": x})["alpha"] for x in (None, 1.0, 0.5)] == [
        1.0,
        1.0,
        0.5,
    ]


NESTED = '{"a":' * 3000 + "1" + "}" * 3000


def test_only_a_newline_ends_a_token_of_a_list(tmp_path):
    (tmp_path / "vocabulary.txt").write_bytes("<unk>\n\r\na\u2028\n".encode())
    assert read_tokens(tmp_path / "vocabulary.txt") == ["<unk>", "\r", "a\u2028"]
    (tmp_path / "vocabulary.txt").write_bytes("<unk>\r\n\r\r\na\u2028\r\n".encode())
    assert read_tokens(tmp_path / "vocabulary.txt") == ["<unk>", "\r", "a\u2028"]


def test_nested_json(toy_file, tmp_path):
    (tmp_path / "vocabulary.json").write_text("[" * 3000)
    with refused("vocabulary.json"):
        read_tokens(tmp_path / "vocabulary.json")
    folder = own_folder(tmp_path, toy_file, {})
    for file in (folder / "tokenizer").iterdir():
        file.write_text(NESTED)
    with refused("tokenizer.model"):
        load(folder)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_do_not_enter(bad, toy_file, tmp_path):
    """Of our own files by every way in, and of another program's array by array."""
    name, x = next((name, x) for name, x in toy_file[2].items() if x.ndim == 2)
    damaged = x.copy()
    damaged[1, 0] = bad
    folder = own_folder(tmp_path, toy_file, {}, {name: damaged})
    for read in (read_model, load):
        with refused("model.safetensors", f"'{name}'", f"{x.size:,}"):
            read(folder)
    flags = "--config.mesh.cpu_devices=1", "--config.mesh.data=-1"
    refused_command(["translate", f"--workdir={folder}", "--input=/dev/null", *flags], f"'{name}'")
    with refused("model.bin", "'a'"):
        NamedArrays("model.bin", {"a": np.array([1, bad], np.float16)}, "a model").take("a", 2)


def test_a_scale_of_zero_makes_no_finite_weight(tmp_path):
    """int8 weights are divided by it."""
    scales = np.array([1.0, 0.0], np.float32).tobytes()
    (tmp_path / "model.bin").write_bytes(
        model_bin(("a", [2, 3], 1, b"\1" * 6), ("a_scale", [2], 0, scales))
    )
    file = read_model_bin(tmp_path / "model.bin")
    with refused("'a'", "6 numbers"):
        NamedArrays(file.path, file.arrays, "a model").take("a", 2, 3)
