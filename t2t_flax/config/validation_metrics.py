"""The metrics that are computed with the validation loss. Others are computed from decoded sentences, by the task."""

HIGHER_IS_BETTER = {"nll": False, "loss": False, "ppl": False, "accuracy": True}
"""Direction of each metric, by its name in eval.metric and after `valid_` in metrics.jsonl."""
