"""Experiment trackers: the numbers of a run in TensorBoard, Weights & Biases, MLflow and Trackio."""

from t2t_flax.registry import HOOKS, add_group

add_group("trackers", "t2t_flax.extensions.trackers.keys", "Trackers")
HOOKS.add("t2t_flax.extensions.trackers.hook", "trackers.names")
