"""Preset of the paper's constituency parser (6.3)."""

from t2t_flax.config.presets import Preset

PRESETS = {
    "aiayn_parsing": Preset(
        "the paper, 6.3; unspecified there: heads and d_ff as base with d_model 1024, untied;"
        " longest target as tensor2tensor's parsing problems",
        {
            "data.task": "parsing",
            "data.max_length": 512,
            "data.pack_length": 512,
            "model.num_encoder_layers": 4,
            "model.num_decoder_layers": 4,
            "model.d_model": 1024,
            "model.tie_embeddings": "none",
            "data.joint_vocabulary": False,
            "data.vocab_size": 16_000,
            "data.corpus": "WSJ constituency trees",
            "decode.beam_size": 21,
            "decode.alpha": 0.3,
            "decode.max_length_offset": 300,
        },
        "F1 91.3 on section 23, WSJ only (Table 4)",
    ),
}
