"""Fine-tuning: parameters of another run to start from, frozen parameters, low-rank adapters, another vocabulary."""

from t2t_flax.registry import PARAMETERS, TOKENIZERS_OF, add_group

add_group("finetuning", "t2t_flax.extensions.finetuning.keys", "FineTuning")
PARAMETERS.add(
    "t2t_flax.extensions.finetuning.parameters", "finetuning.init_from", "finetuning.freeze", "finetuning.lora_rank"
)
TOKENIZERS_OF.add("t2t_flax.extensions.finetuning.keys", "finetuning.init_from")
