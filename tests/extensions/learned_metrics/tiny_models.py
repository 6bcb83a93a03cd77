"""Makes tiny models of learned metrics with random weights, and scores them with their packages.

`python tiny_models.py FOLDER`.

Runs in the environment of unbabel-comet.
"""

import json
import sys
from pathlib import Path

import sentencepiece
import torch
import yaml
from comet.models import ReferencelessRegression, RegressionMetric
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Tokenizer,
    XLMRobertaConfig,
    XLMRobertaModel,
    XLMRobertaTokenizer,
    XLMRobertaTokenizerFast,
)

SAMPLES = [
    {"src": "The dog sleeps.", "mt": "Der Hund schläft.", "ref": "Der Hund schläft jetzt."},
    {"src": "A house.", "mt": "Ein Baum und noch ein Baum.", "ref": "Ein Haus."},
    {"src": "Where is it?", "mt": "Wo ist es?", "ref": "Wo ist es?"},
]
CARD = "---\nlicense: apache-2.0\n---\n"


def main(folder: Path) -> None:
    torch.manual_seed(0)
    texts = [text for sample in SAMPLES for text in sample.values()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 20), model_prefix=str(folder / "spm"), vocab_size=60, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    encoder = folder / "encoder"
    tokenizer = XLMRobertaTokenizer(str(folder / "spm.model"))
    tokenizer.save_pretrained(encoder)
    XLMRobertaTokenizerFast.from_pretrained(encoder).save_pretrained(encoder)
    small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    config = XLMRobertaConfig(vocab_size=len(tokenizer) + 10, max_position_embeddings=64, **small)
    XLMRobertaModel(config, add_pooling_layer=False).save_pretrained(encoder)
    expected: dict = {"samples": SAMPLES}
    for name, kind in (("comet", RegressionMetric), ("kiwi", ReferencelessRegression)):
        model = kind(
            pretrained_model=str(encoder), hidden_sizes=[8], local_files_only=True, dropout=0.0
        )
        (folder / name / "checkpoints").mkdir(parents=True)
        (folder / name / "hparams.yaml").write_text(yaml.safe_dump(dict(model.hparams)))
        (folder / name / "README.md").write_text(CARD)
        checkpoint = {
            "state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams), "pytorch-lightning_version": "2.0.0",
        }  # fmt: skip
        torch.save(checkpoint, folder / name / "checkpoints" / "model.ckpt")
        # One by one, without padding: the process scores them in batches.
        expected[name] = [
            float(model.predict([s], gpus=0, num_workers=0, progress_bar=False)["scores"][0])
            for s in SAMPLES
        ]
    expected["metricx"] = make_metricx(folder / "metricx", folder / "spm.model")
    (folder / "expected.json").write_text(json.dumps(expected))


def make_metricx(folder: Path, pieces: Path) -> list[float]:
    """An mT5 whose scores are well within 0 and 25."""
    tokenizer = T5Tokenizer(str(pieces), extra_ids=0, legacy=False)
    tokenizer.save_pretrained(folder)
    config = MT5Config(
        vocab_size=250112,
        d_model=8,
        d_kv=4,
        d_ff=8,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    model = MT5ForConditionalGeneration(config).eval()
    texts = [
        "source: {src} candidate: {mt} reference: {ref}".format(**sample) for sample in SAMPLES
    ]
    inputs = [torch.tensor([tokenizer(text).input_ids[:-1]]) for text in texts]
    first = torch.tensor([[0]])
    with torch.no_grad():
        hidden = [
            model(
                input_ids=ids, decoder_input_ids=first, output_hidden_states=True
            ).decoder_hidden_states[-1][0, 0]
            for ids in inputs
        ]
        # Towards the first state, so that scores are positive: 12 for the first sentence.
        model.lm_head.weight[250089] = 12 * hidden[0] / (hidden[0] @ hidden[0])
        scores = [
            float(model(input_ids=ids, decoder_input_ids=first).logits[0, 0, 250089])
            for ids in inputs
        ]
    assert all(0 < score < 25 for score in scores), scores
    model.save_pretrained(folder)
    (folder / "README.md").write_text(CARD)
    return scores


if __name__ == "__main__":
    main(Path(sys.argv[1]))
