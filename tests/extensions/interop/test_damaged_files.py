"""Damaged and hostile files of models: each reader refuses them in one line that names the file."""

import io
import json
import shutil
import struct
import zipfile

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from t2t_flax.__main__ import main
from t2t_flax.errors import UserError
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
        changes = {"checkpoint": json.dumps(json.loads(metadata["checkpoint"]) | changes["checkpoint"])}
    metadata = {key: value for key, value in (metadata | changes).items() if value is not None}
    save_file(arrays | dict(more_arrays), path / "model.safetensors", metadata=metadata)
    return path


@pytest.mark.parametrize("steps", [["../../../evil"], 5, [], [1.5], [True], [-1], None, "12", [[3]]])
def test_steps_that_are_no_numbers_of_steps_are_refused(toy_file, steps, tmp_path):
    """Records are named after them."""
    folder = own_folder(tmp_path, toy_file, {"checkpoint": {"steps": steps}})
    for read in (read_model, stored_config):
        with pytest.raises(UserError, match=r"model\.safetensors has steps = .* expected whole numbers"):
            read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": None}, "no JSON object as the config"),
        ({"config": "{"}, "no JSON object as the config"),
        ({"config": "[" * 100_000}, "no JSON object as the config"),
        ({"config": "[]"}, "no JSON object as the config"),
        ({"checkpoint": "[]"}, "no JSON object as the checkpoint"),
        ({"checkpoint": {"tokenizer": 5}}, "tokenizer = 5 in its metadata; expected a digest"),
        ({"checkpoint": {"dtype": []}}, r"dtype = \[\] in its metadata; expected float32 or float16"),
    ],
)
def test_metadata_of_our_own_format(toy_file, changes, message, tmp_path):
    folder = own_folder(tmp_path, toy_file, changes)
    for read in (read_model, stored_config):
        with pytest.raises(UserError, match=rf"model\.safetensors has {message}"):
            read(folder)


@pytest.mark.parametrize("inner", [True, False])
def test_an_array_within_another_one(toy_file, inner, tmp_path):
    name = next(iter(toy_file[2]))
    clash = f"{name}/inner" if inner else name.rpartition("/")[0]
    with pytest.raises(UserError, match=r"model\.safetensors does not hold parameters of t2t_flax"):
        read_model(own_folder(tmp_path, toy_file, {}, {clash: np.zeros(1, np.float32)}))


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
    "an array alone": lambda: npy(np.zeros(3)),
    "damaged deflate": damaged_deflate,
    "no array": lambda: zip_of({"a.txt": b"text"}),
    "header without end": lambda: zip_of({"a.npy": npy(np.zeros(3))[:40]}),
    "header is no header": lambda: zip_of({"a.npy": npy(np.zeros(3)).replace(b"{'descr'", b"{{{{{{{{")}),
    "shape of another size": lambda: zip_of({"a.npy": npy(np.zeros(3)).replace(b"(3,)", b"(9,)")}),
    "objects": lambda: zip_of({"a.npy": npy(np.array([{}], object))}),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_numpy_archives(kind, tmp_path):
    (tmp_path / "weights.npz").write_bytes(ARCHIVES[kind]())
    with pytest.raises(UserError, match=r"weights\.npz is not a readable NumPy archive"):
        read_npz(tmp_path / "weights.npz")


def test_an_archive_that_would_fill_the_memory_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "weights.npz"
    np.savez_compressed(path, a=np.zeros(4_000_000, np.float32))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    with pytest.raises(UserError, match=r"weights\.npz would unpack to 16,000,1\d\d bytes"):
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
    ("arrays", "message"),
    [
        ([("x", [1] * 70, 0, bytes(4))], "gives 'x' 70 dimensions"),
        (
            [("x", [2, 3], 1, bytes(6)), ("x_scale", [5], 0, bytes(20))],
            r"scales of shape \(5,\) for 'x' of shape \(2, 3\)",
        ),
        ([("x", [2], 1, bytes(2)), ("x_scale", [2, 1, 1], 0, bytes(8))], r"scales of shape \(2, 1, 1\)"),
    ],
)
def test_arrays_of_a_model_bin(arrays, message, tmp_path):
    (tmp_path / "model.bin").write_bytes(model_bin(*arrays))
    with pytest.raises(UserError, match=rf"model\.bin .*{message}"):
        read_model_bin(tmp_path / "model.bin")


@pytest.mark.parametrize("array", [np.zeros(0), np.array(["a"]), np.array([np.nan]), np.zeros(1, "V3")])
def test_arrays_that_are_no_numbers(array, tmp_path):
    arrays = NamedArrays(tmp_path / "weights.npz", {"a": array}, "")
    with pytest.raises(UserError, match=r"weights\.npz: 'a' is .*; expected a finite number"):
        arrays.scalar("a", 0)
    if array.dtype.kind != "f":
        with pytest.raises(UserError, match=r"weights\.npz: 'a' is .*; expected floating-point weights"):
            arrays.take("a", 1)


@pytest.mark.parametrize("key, value", [("unk_token", ["a"]), ("eos_token", {}), ("layer_norm_epsilon", "small")])
def test_settings_of_ctranslate2(key, value, tmp_path):
    (tmp_path / "model.bin").write_bytes(model_bin())
    (tmp_path / "config.json").write_text(json.dumps({key: value}))
    with pytest.raises(UserError, match=rf"config\.json: {key} = .*; expected (text|a number)\."):
        read_model(tmp_path)


SIZES = ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim")
HEADS = ("encoder_attention_heads", "decoder_attention_heads")
MARIAN = dict.fromkeys(SIZES, 8) | dict.fromkeys(HEADS, 2) | dict(
    model_type="marian", vocab_size=4, pad_token_id=0, eos_token_id=1, activation_function="relu"
)  # fmt: skip


def marian_folder(folder, changes=(), generation=(), tokenizer=()):
    """Without weights: what is refused here is refused before them."""
    files = {
        "config": MARIAN | dict(changes),
        "generation_config": dict(generation),
        "tokenizer_config": dict(tokenizer),
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict.fromkeys(HEADS, 0), "encoder_attention_heads = 0; expected a whole number from 1 on"),
        ({"d_model": -8}, "d_model = -8; expected a whole number from 1 on"),
        ({"encoder_layers": True}, "encoder_layers = True; expected a whole number"),
        ({"pad_token_id": -1}, "pad_token_id = -1; expected a whole number from 0 on"),
        ({"activation_function": []}, r"activation_function = \[\] is not one of relu"),
        ({"decoder_start_token_id": [3]}, r"decoder_start_token_id = \[3\]; expected a whole number"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings = 'many'; expected a whole number"),
    ],
)
def test_config_of_marian(changes, message, tmp_path):
    with pytest.raises(UserError, match=rf"config\.json: {message}"):
        read_model(marian_folder(tmp_path, changes))


@pytest.mark.parametrize("key, value", [("num_beams", [4]), ("max_length", "long"), ("length_penalty", "large")])
def test_search_of_marian(key, value, tmp_path):
    with pytest.raises(UserError, match=rf"generation_config\.json: {key} = .*; expected a (whole )?number"):
        read_model(marian_folder(tmp_path, generation={key: value}))


def test_a_forced_first_token_of_marian_is_refused_where_transformers_5_writes_it(tmp_path):
    with pytest.raises(UserError, match=r"generation_config\.json: forced_bos_token_id = 7 is not supported"):
        read_model(marian_folder(tmp_path, generation={"forced_bos_token_id": 7}))


def test_no_length_penalty_is_the_default_of_marian():
    from t2t_flax.extensions.interop.marian_import import _decode

    assert [_decode(MARIAN, {"length_penalty": x})["alpha"] for x in (None, 1.0, 0.5)] == [1.0, 1.0, 0.5]


def test_tokens_of_marian(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer_config\.json: pad_token = \['<pad>'\]; expected a token"):
        read_model(marian_folder(tmp_path, tokenizer={"pad_token": ["<pad>"]}))


NESTED = '{"a":' * 3000 + "1" + "}" * 3000


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config", "vocab"])
def test_nested_json_of_marian(name, tmp_path):
    folder = marian_folder(tmp_path)
    (folder / f"{name}.json").write_text(NESTED)
    with pytest.raises(UserError, match=rf"{name}\.json cannot be read as JSON: more than 64 levels"):
        read_model(folder)


def test_nested_json_of_ctranslate2_and_of_tokenizers(toy_file, tmp_path):
    (tmp_path / "model.bin").write_bytes(model_bin())
    (tmp_path / "config.json").write_text(NESTED)
    with pytest.raises(UserError, match=r"config\.json cannot be read as JSON"):
        read_model(tmp_path)
    (tmp_path / "vocabulary.json").write_text("[" * 3000)
    with pytest.raises(UserError, match=r"vocabulary\.json is not a list of tokens"):
        read_tokens(tmp_path / "vocabulary.json")
    folder = own_folder(tmp_path, toy_file, {})
    (folder / "config.json").unlink()
    for file in (folder / "tokenizer").iterdir():
        file.write_text(NESTED)
    with pytest.raises(UserError, match="is not a tokenizer"):
        load(folder)


BOOLEANS = ("scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings")


@pytest.mark.parametrize(
    ("files", "key"),
    [
        *(({"changes": {key: "false"}}, key) for key in BOOLEANS),
        ({"changes": {"dropout": "0.1"}}, "dropout"),
        ({"generation": {"renormalize_logits": "false"}}, "renormalize_logits"),
        ({"tokenizer": {"separate_vocabs": "false"}}, "separate_vocabs"),
        ({"tokenizer": {"source_lang": ["en"]}}, "source_lang"),
    ],
)
def test_fields_of_another_type_are_not_taken_for_true(files, key, tmp_path):
    with pytest.raises(UserError, match=rf"config\.json: {key} = .*; expected (true or false|a number|text)"):
        read_model(marian_folder(tmp_path, **files))


@pytest.mark.parametrize("key", ["add_source_eos", "add_source_bos"])
def test_flags_of_ctranslate2(key, tmp_path):
    (tmp_path / "model.bin").write_bytes(model_bin())
    (tmp_path / "config.json").write_text(json.dumps({key: "false"}))
    with pytest.raises(UserError, match=rf'config\.json: {key} = "false"; expected true or false'):
        read_model(tmp_path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_do_not_enter(bad, toy_file, tmp_path, capsys):
    """Of our own files by every way in, and of another program's array by array."""
    name, x = next((name, x) for name, x in toy_file[2].items() if x.ndim == 2)
    damaged = x.copy()
    damaged[1, 0] = bad
    folder = own_folder(tmp_path, toy_file, {}, {name: damaged})
    for read in (read_model, load):
        with pytest.raises(
            UserError, match=rf"model\.safetensors: '{name}' holds 1 of {x.size:,} numbers that are not finite"
        ):
            read(folder)
    flags = "--config.mesh.cpu_devices=1", "--config.mesh.data=-1"
    assert main(["translate", f"--workdir={folder}", "--input=/dev/null", *flags]) == 2
    assert "not finite" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"model\.bin: 'a' holds 1 of 2 numbers"):
        NamedArrays("model.bin", {"a": np.array([1, bad], np.float16)}, "a model").take("a", 2)


def test_a_scale_of_zero_makes_no_finite_weight(tmp_path):
    """int8 weights are divided by it."""
    scales = np.array([1.0, 0.0], np.float32).tobytes()
    (tmp_path / "model.bin").write_bytes(model_bin(("a", [2, 3], 1, b"\1" * 6), ("a_scale", [2], 0, scales)))
    file = read_model_bin(tmp_path / "model.bin")
    with pytest.raises(UserError, match="'a' holds 3 of 6 numbers that are not finite"):
        NamedArrays(file.path, file.arrays, "a model").take("a", 2, 3)
