"""M2M-100 and NLLB against transformers: tokens, logits, beams; files that do not fit."""

import json
import re
import shutil

import numpy as np
import pytest
from helpers import m2m100
from helpers.configs import rows_alone
from helpers.refusals import refused, refused_command

import t2t_flax
from t2t_flax.__main__ import main
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.sources import toy
from t2t_flax.extensions.interop.import_model import read_model
from t2t_flax.extensions.interop.safetensors_file import flatten
from t2t_flax.training.train_state import make_model

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="needs the extra hf")

LINES = [source for source, _ in toy.pairs("test", 100)]
TARGETS = [target for _, target in toy.pairs("test", 6)]
FORMS = {
    "fast": (m2m100.write_nllb_fast, 170, "eng_Latn", "deu_Latn"),
    "last": (lambda folder: m2m100.write_nllb_fast(folder, legacy_behaviour=True), 159, "eng_Latn", "zho_Hans"),
    "m2m": (m2m100.write_m2m100, 264, "en", "de"),
}  # fmt: skip
"""How the tokenizer is written, rows of the tables, and a source and target language."""


@pytest.fixture(scope="module", params=list(FORMS))
def imported(request, tmp_path_factory):
    """(folder, transformers' model, its tokenizer, the imported run, languages)."""
    write, rows, *languages = FORMS[request.param]
    folder = tmp_path_factory.mktemp(request.param) / "model"
    folder.mkdir()
    write(folder)
    model = m2m100.make_model(folder, vocab_size=rows)
    run = folder.parent / "run"
    assert main(["import", f"--from={folder}", f"--workdir={run}"]) == 0
    loaded = t2t_flax.load(run, overrides={"decode.n_best": "3"})
    return folder, model, transformers.AutoTokenizer.from_pretrained(folder), loaded, languages


def tagged(text, source, target):
    return f"<2{target}> <from:{source}> {text}"


def test_tokens_are_those_of_transformers(imported):
    *_, theirs, run, (source, target) = imported
    names = dict(enumerate(theirs.convert_ids_to_tokens(range(run.tokenizers.source.vocab_size))))
    for text in [*LINES[:8], *TARGETS, "Ω unknown", "two  spaces"]:
        for own, into in ((source, target), (target, source)):
            theirs.src_lang, theirs.tgt_lang = own, into
            pair = run.encode_pair(tagged(text, own, into), text)
            ids = theirs(text, text_target=text)
            ours = [run.tokenizers.source.pieces(side) for side in (pair.source, pair.target)]
            if run.tokenizers.source.source_last:  # what targets are told transformers, as sources
                ids["labels"] = [ids["labels"][-1], *ids["labels"][:-1]]
            assert ours == [[names[i] for i in ids[side]] for side in ("input_ids", "labels")]
        labels = [i for i in pair.target[1:] if i != 2]  # which is shown here, left out there
        shown = list(names.values())
        back = [shown.index(piece) for piece in run.tokenizers.target.pieces(labels)]
        assert run.tokenizers.target.decode(labels) == theirs.decode(back, skip_special_tokens=True)


def logits_of(model, ids, rows):
    """Transformers' logits of pairs of our ids, with its rows of the tables."""
    out = []
    for source, target in ids:
        start = torch.tensor([[model.config.decoder_start_token_id, *rows[target[:-1]]]])
        with torch.no_grad():
            out.append(
                model(input_ids=torch.tensor([rows[source].tolist()]), decoder_input_ids=start)
                .logits[0]
                .numpy()[:, rows]
            )
    return out


def packed(pairs, length):
    """All pairs in one row, as arrays [1, L]."""
    arrays = {}
    for n, side in enumerate(("source", "target")):
        ids = [pair[n] for pair in pairs]
        columns = {
            side: np.concatenate(ids),
            f"{side}_segments": np.repeat(np.arange(len(ids)) + 1, list(map(len, ids))),
            f"{side}_positions": np.concatenate([np.arange(len(one)) for one in ids]),
        }
        for name, x in columns.items():
            arrays[name] = np.pad(x, (0, length - len(x)))[None].astype(np.int32)
    return arrays


def rows_of(vocab_size, special=(1, 2, 3)):
    """Transformers' ids of ours: padding, EOS, unknown, then all others in order."""
    return np.array([*special, *(i for i in range(vocab_size) if i not in special)])


def test_logits_equal_those_of_transformers(imported):
    """Of single and of packed sentences."""
    _, model, _, run, languages = imported
    ids = []
    for line, target in zip(LINES, TARGETS, strict=False):
        pair = run.encode_pair(tagged(line, *languages), target)
        ids.append((list(pair.source), list(pair.target)))
    rows = rows_of(model.config.vocab_size)
    expected = logits_of(model, ids, rows)
    apply = lambda batch: np.asarray(run.model.apply({"params": run.params}, batch))  # noqa: E731
    alone = apply(rows_alone(ids, max(len(side) for pair in ids for side in pair)))
    in_one = apply(packed(ids, max(sum(map(len, side)) for side in zip(*ids, strict=True)) + 3))
    at = 0
    for n, theirs in enumerate(expected):
        count = len(ids[n][1])
        for ours in (alone[n, :count], in_one[0, at : at + count]):
            np.testing.assert_allclose(ours[:, : len(rows)], theirs, rtol=1e-4, atol=1e-4)
        at += count


def test_beams_equal_those_of_generate(imported):
    """Of 100 sentences, whether they end or not."""
    _, model, tokenizer, run, (source, target) = imported
    tokenizer.src_lang = source
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    language = tokenizer.convert_tokens_to_ids(run.tokenizers.source.languages[target])
    theirs = model.generate(**batch, forced_bos_token_id=language).numpy()
    rows = rows_of(model.config.vocab_size)
    translations = run.translate([tagged(line, source, target) for line in LINES])
    compared = 0
    for ours, ids in zip(translations, theirs, strict=True):
        expected = [i for i in ids[1:].tolist() if i != 1]
        # At the limit, unfinished hypotheses compete with finished ones there, here only if there
        # are fewer finished ones than beams.
        if expected[-1] != 2 and not any(h.hit_cap for h in ours.hypotheses):
            continue
        compared += 1
        best = max(ours.hypotheses, key=lambda hypothesis: hypothesis.score)
        tokens = rows[[*best.tokens, *([] if best.hit_cap else [EOS])]].tolist()
        assert tokens == expected
    assert compared > 95 and len({t.hypotheses[0].tokens for t in translations}) > 10
    assert all(t.hypotheses[0].tokens[0] == run.tokenizers.source.target_languages[target] for t in translations)  # fmt: skip


def test_lines_are_tagged_by_flags(imported, tmp_path, capsys):
    folder, *_, run, (source, target) = imported
    (tmp_path / "lines").write_text("\n".join(LINES[:2]) + "\n")
    words = ["translate", f"--workdir={folder.parent / 'run'}", f"--input={tmp_path / 'lines'}"]
    flags = [f"--source-language={source}", f"--target-language={target}"]
    assert main([*words, *flags]) == 0
    expected = [t.text for t in run.translate([tagged(line, source, target) for line in LINES[:2]])]
    assert capsys.readouterr().out.splitlines() == expected
    near = {"eng_Latn": "deu_Latn", "en": "de"}[source]
    with refused(near, "deu_Grek"):
        run.in_language(f"<from:{source}> a", "deu_Grek")
    for flag, names in (
        ("--source-language=deu_Grek", (near,)),
        (flags[0], ("<2", "--target-language=")),
    ):
        refused_command([*words, flag], *names)
    if run.config.data.source_language == "mul":
        with refused("<from:", "--source-language="):
            run.in_language("a", target)


def test_exports_hold_the_same_model(imported, tmp_path):
    """In transformers; in CTranslate2 with the target language as the prefix."""
    folder, model, tokenizer, run, (source, target) = imported
    for kind in ("huggingface", "ctranslate2"):
        words = ["export", f"--workdir={folder.parent / 'run'}", f"--format={kind}"]
        if kind == "ctranslate2":
            ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
        assert main([*words, f"--output={tmp_path / kind}"]) == 0
    back = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "huggingface").state_dict()
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(x, back[name]) for name, x in model.state_dict().items())
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "huggingface")
    tokenizer.src_lang = again.src_lang = source
    assert again(LINES[:20]).input_ids == tokenizer(LINES[:20]).input_ids
    assert read_model(tmp_path / "huggingface").config.decode == run.stored.decode
    side = run.tokenizers.source
    tokens = [
        [*pieces, "</s>", side.languages[source]]
        if side.source_last
        else [side.languages[source], *pieces]
        for pieces in (side.pieces(side.encode_text(line)) for line in LINES)
    ]
    found = ctranslate2.Translator(str(tmp_path / "ctranslate2")).translate_batch(
        tokens,
        target_prefix=[[side.languages[target]]] * len(LINES),
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=23,
        suppress_sequences=[["<pad>"]],
    )
    greedy = t2t_flax.load(folder.parent / "run", overrides={"decode.strategy": "greedy"})
    ours = greedy.translate([tagged(line, source, target) for line in LINES])
    for one, theirs in zip(ours, found, strict=True):
        assert side.pieces(one.hypotheses[0].tokens) == theirs.hypotheses[0]
    back = read_model(tmp_path / "ctranslate2")
    assert back.tokenizers.digest == run.tokenizers.digest
    ours, back = flatten(run.params), flatten(back.params)
    for path in back.keys() - {"shared_embedding/table"}:  # it has rows of padding here
        np.testing.assert_array_equal(ours[path], back[path], err_msg=path)


@pytest.mark.parametrize("imported", ["fast"], indirect=True)
def test_ctranslate2_forces_the_language_as_the_jax_search(imported, monkeypatch):
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    folder, *_, languages = imported
    lines = [*(tagged(line, *languages) for line in LINES), ""]
    for keys in ({"decode.early_stopping": "beam_full"}, {"decode.strategy": "greedy"}):
        ours, theirs = (
            t2t_flax.load(folder.parent / "run", overrides=keys | {"decode.engine": engine})
            for engine in ("jax", "ctranslate2")
        )
        left = []
        monkeypatch.setattr(
            theirs.decoder,
            "_jax_translate",
            lambda lines, prefixes, ours=ours, left=left: left.extend(lines) or ours.translate(lines),
        )  # fmt: skip
        for a, b in zip(ours.translate(lines), theirs.translate(lines), strict=True):
            assert [h.tokens for h in a.hypotheses] == [h.tokens for h in b.hypotheses]
            assert [h.score for h in b.hypotheses] == pytest.approx(
                [h.score for h in a.hypotheses], abs=1e-4
            )
        assert len(left) < len(lines) - 10, "the engine decodes lines that have no other prefix"


@pytest.mark.parametrize("imported", ["last"], indirect=True)
def test_a_server_offers_all_languages(imported):
    for package in ("fastapi", "python_multipart", "prometheus_client", "uvicorn", "httpx"):
        pytest.importorskip(package, reason="needs the extra serve and httpx")
    from helpers.http_server import serving

    *_, run, (source, target) = imported
    with serving({"nllb": run}) as server:
        languages = {one["code"]: one["targets"] for one in server.get("/languages").json()}
        assert sorted(languages) == sorted(run.tokenizers.source.languages)
        assert sorted(languages[source]) == sorted(languages.keys() - {source})
        (expected,) = run.translate([tagged(LINES[0], source, target)])
        body = {"q": LINES[0], "source": "en", "target": target}
        assert server.post("/translate", body).json()["translatedText"] == expected.text
        body = {"text": [LINES[0]], "target_language": target, "source_language": source}
        (answer,) = server.post("/api/translate", body).json()["translations"]
        assert answer["hypotheses"][0]["text"] == expected.text
        answer = server.post("/api/translate", body | {"source_language": "xx"})
        assert answer.status_code == 400 and source in answer.json()["error"]


@pytest.mark.parametrize("imported", ["fast"], indirect=True)
@pytest.mark.parametrize("keys", [(), ("finetuning.lora_rank=2",)], ids=["all", "lora"])
def test_fine_tuning_starts_from_the_imported_model(imported, keys, tmp_path, capsys):
    """Two directions, a few updates; update 0 is evaluated, too."""
    folder, *_, (source, target) = imported
    names = [f"{source}-{target}", f"{target}-{source}"]
    flags = [
        f"--config.{key}"
        for key in (
            f"finetuning.init_from={folder.parent / 'run'}",
            "data.train=" + ";".join(f"{name}=toy:train:40" for name in names),
            f"data.valid={names[0]}=toy:valid:8",
            "train.steps=3", "optimizer.warmup_steps=1", "eval.every_steps=3", "checkpoint.every_steps=3",
            "data.pack_length=128", "data.batch_tokens=512", "data.microbatch_tokens=512", "mesh.cpu_devices=1", *keys,
        )
    ]  # fmt: skip
    tuned = tmp_path / "tuned"
    if not keys:
        other = flags[1].replace("deu_Latn", "deu_Grek")
        argv = ["train", "--config=configs/finetune.py", f"--workdir={tuned}", flags[0], other]
        refused_command(argv, "<2deu_Grek>", "<2deu_Latn>")
    assert main(["train", "--config=configs/finetune.py", f"--workdir={tuned}", *flags]) == 0
    losses = [
        line["valid_nll"]
        for line in map(json.loads, (tuned / "metrics.jsonl").read_text().splitlines())
        if "valid_nll" in line
    ]
    assert len(losses) == 2 and losses[1] < losses[0]
    before, after = (flatten(t2t_flax.load(one).params) for one in (folder.parent / "run", tuned))
    changed = {path for path, x in after.items() if not np.array_equal(x, before[path])}
    assert changed == (
        {path for path in after if path.rsplit("/", 2)[-2] in ("query", "value") and path.endswith("kernel")}
        if keys
        else set(after)
    )  # fmt: skip


def test_a_sentencepiece_model_gives_the_ids_of_its_fast_form(tmp_path):
    forms = {}
    for write in (m2m100.write_nllb_fast, m2m100.write_nllb_sentencepiece):
        folder = tmp_path / write.__name__
        folder.mkdir()
        write(folder)
        m2m100.make_model(folder, vocab_size=170)
        forms[write] = read_model(folder, languages=("eng_Latn", ""))
    fast, plain = (model.tokenizers.source for model in forms.values())
    assert fast.pieces(range(170)) == plain.pieces(range(170))
    assert fast.control_symbols == plain.control_symbols and not (fast.source_last or plain.json)
    for text in [*LINES[:30], *TARGETS, "two  spaces", "Ω"]:
        ids = plain.encode_text(text)
        assert fast.encode_text(text) == ids
        kept = [i for i in ids if i > 2]
        assert plain.decode(kept) == fast.decode(kept)


@pytest.mark.parametrize(
    "write, rows, new, like",
    [
        (m2m100.write_nllb_fast, 159, "slk_Latn", "ces_Latn"),
        (m2m100.write_nllb_sentencepiece, 159, "slk_Latn", "ces_Latn"),
        (m2m100.write_nllb_fast, 170, "slk_Latn", "ces_Latn"),  # rows of padding
        (m2m100.write_m2m100, 264, "eo", "cs"),
    ],
)
def test_a_new_language_starts_as_another(write, rows, new, like, tmp_path):
    """It translates like the other one; exports keep its token and its row."""
    (folder := tmp_path / "model").mkdir()
    write(folder)
    m2m100.make_model(folder, vocab_size=rows)
    words = ["import", f"--from={folder}", f"--workdir={tmp_path / 'run'}"]
    source = f"--source-language={new}"
    assert main([*words, f"--new-language={new}={like}", source]) == 0
    run = t2t_flax.load(tmp_path / "run", overrides={"decode.strategy": "greedy"})
    own = "eng_Latn" if "_" in new else "en"
    texts = [
        [t.text for t in run.translate([tagged(line, own, into) for line in LINES[:8]])]
        for into in (new, like)
    ]
    assert texts[0] == texts[1] and any(texts[0])
    assert (
        main(
            [
                "export",
                f"--workdir={tmp_path / 'run'}",
                "--format=huggingface",
                f"--output={tmp_path / 'hf'}",
            ]
        )
        == 0
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    tokens = run.tokenizers.source.languages
    ids = tokenizer.convert_tokens_to_ids([tokens[new], tokens[like]])
    assert len(set(ids)) == 2 and tokenizer.unk_token_id not in ids
    table = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").model.shared.weight
    assert torch.equal(table[ids[0]], table[ids[1]])
    own = re.search(r'src_lang="(\w+)"', (tmp_path / "hf" / "README.md").read_text())
    tokenizer.src_lang = own[1]  # of the README's example
    again = read_model(tmp_path / "hf").tokenizers.source
    assert again.control_symbols == run.tokenizers.source.control_symbols
    flag = f"--new-language={new}={like}"
    for wrong in (f"{new}={new}", f"{like}={like}", f"a-b={like}", f"__xx__={like}", new):
        argv = [*words[:2], f"--workdir={tmp_path / 'no'}", f"--new-language={wrong}"]
        refused_command(argv, "--new-language")
    refused_command([*words[:2], f"--workdir={tmp_path / 'no'}", flag, flag], "--new-language", new)


@pytest.mark.parametrize("tied", [True, False])
def test_all_files_of_weights_hold_the_same_model(tmp_path, tied):
    m2m100.write_nllb_fast(tmp_path)
    model = m2m100.make_model(tmp_path, vocab_size=159, tie_word_embeddings=tied)
    expected = flatten(read_model(tmp_path).params)
    assert tied == ("shared_embedding/table" in expected)

    def check(file):
        assert (tmp_path / file).is_file()
        found = flatten(read_model(tmp_path).params)
        assert found.keys() == expected.keys()
        for path, x in expected.items():
            np.testing.assert_array_equal(found[path], x, err_msg=path)
        for path in [*tmp_path.glob("*.safetensors*"), *tmp_path.glob("*.bin*")]:
            path.unlink()

    check("model.safetensors")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    check("model.safetensors.index.json")
    state = model.state_dict() | {  # as older files have them
        f"model.{stack}.embed_positions.weights": getattr(model, f"get_{stack}")().embed_positions.weights
        for stack in ("encoder", "decoder")
    }  # fmt: skip
    torch.save(state, tmp_path / "pytorch_model.bin")
    check("pytorch_model.bin")
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    check("pytorch_model.bin")
    names = sorted(state)
    shards = {f"pytorch_model-{n}-of-2.bin": names[n - 1 :: 2] for n in (1, 2)}
    for file, part in shards.items():
        torch.save({name: state[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    check("pytorch_model.bin.index.json")
    index["weight_map"] = dict.fromkeys(names, "../elsewhere.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with refused("pytorch_model.bin.index.json", "weight_map"):
        read_model(tmp_path)
    (tmp_path / "pytorch_model.bin.index.json").unlink()
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    for path, x in flatten(read_model(tmp_path).params).items():
        rounded = torch.tensor(np.array(expected[path])).to(torch.bfloat16).float()
        np.testing.assert_array_equal(x, rounded, err_msg=path)


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "model"
    folder.mkdir()
    m2m100.write_nllb_sentencepiece(folder, src_lang="eng_Latn")
    m2m100.make_model(folder, vocab_size=159, encoder_layers=1, decoder_layers=1)
    return folder


def random_keys(seed):
    """Sizes and kinds of a random model."""
    rng = np.random.default_rng(seed)
    heads = int(rng.choice([1, 2, 3, 4]))
    return dict(
        d_model=heads * int(rng.choice([4, 6, 8])) * (1 + heads % 2),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_layers=int(rng.integers(1, 3)),
        decoder_layers=int(rng.integers(1, 3)),
        encoder_ffn_dim=(ffn := int(rng.integers(5, 40))),
        decoder_ffn_dim=ffn,
        scale_embedding=bool(rng.integers(2)),
        tie_word_embeddings=bool(seed % 2),
        activation_function=str(rng.choice(["relu", "silu", "gelu_new"])),
        vocab_size=int(rng.integers(159, 200)),
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_models_have_the_logits_of_transformers(plain_folder, seed, tmp_path):
    copy = shutil.copytree(plain_folder, tmp_path / "model")
    keys = random_keys(seed)
    model = m2m100.make_model(copy, seed=seed, **keys)
    read = read_model(copy)
    rng, vocab = np.random.default_rng(seed), keys["vocab_size"]
    ids = [([*rng.integers(3, vocab, 5), EOS], [*rng.integers(3, vocab, n), EOS]) for n in (2, 6)]
    ours = make_model(read.config, vocab, vocab).apply({"params": read.params}, packed(ids, 16))[0]
    rows = rows_of(vocab)
    theirs = np.concatenate(logits_of(model, ids, rows))
    ours = np.asarray(ours)[: len(theirs), :vocab]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "file, change, names",
    [
        ("config.json", dict(activation_function="gelu"), ("activation_function", "'gelu'")),
        ("config.json", dict(decoder_ffn_dim=50), ("encoder_ffn_dim", "decoder_ffn_dim")),
        ("config.json", dict(encoder_layers=2), ("'model.encoder.layers.1.self_attn.q_proj.weight'",)),
        ("config.json", dict(vocab_size=150), ("sentencepiece.bpe.model", "150")),
        ("config.json", dict(vocab_size=160), ("'model.shared.weight'",)),
        ("config.json", dict(pad_token_id=5), ("pad_token_id", "<pad>")),
        ("config.json", dict(decoder_start_token_id=10**6), ("decoder_start_token_id", "1000000")),
        ("config.json", dict(model_type="t5"), ("model_type", "m2m_100")),
        ("special_tokens_map.json", dict(additional_special_tokens=["<mask>"]), ("eng_Latn",)),
        ("tokenizer_config.json", dict(legacy_behaviour="yes"), ("legacy_behaviour",)),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused_by_name(plain_folder, file, change, names, tmp_path):
    copy = shutil.copytree(plain_folder, tmp_path / "bad")
    content = json.loads((copy / file).read_text())
    (copy / file).write_text(json.dumps(content | change))
    with refused(*names):
        read_model(copy)


def test_missing_and_damaged_files_are_named(plain_folder, tmp_path):
    copy = shutil.copytree(plain_folder, tmp_path / "bad")
    with refused("--source-language=xx_Latn"):
        read_model(copy, languages=("xx_Latn", ""))
    (copy / "sentencepiece.bpe.model").write_bytes(b"no model")
    with refused("sentencepiece.bpe.model"):
        read_model(copy)
    (copy / "sentencepiece.bpe.model").unlink()
    with refused("sentencepiece.bpe.model", "tokenizer.json"):
        read_model(copy)
    for text in ("[]", "{}", '{"model": {"vocab": {"a": 5}}}', '{"added_tokens": [1]}'):
        (copy / "tokenizer.json").write_text(text)
        with refused("tokenizer.json"):
            read_model(copy)
    vocab = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "eng_Latn"])}
    (copy / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    with refused("tokenizer.json"):
        read_model(copy)
    shutil.copy(plain_folder / "sentencepiece.bpe.model", copy)
    (copy / "model.safetensors").unlink()
    with refused("model.safetensors"):
        read_model(copy)
