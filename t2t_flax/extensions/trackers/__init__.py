"""Experiment trackers: the numbers of a run in TensorBoard, Weights & Biases, MLflow and Trackio."""

from t2t_flax.registry import add_group, add_hook

add_group("trackers", "t2t_flax.extensions.trackers.keys", "Trackers")
add_hook("trackers", "t2t_flax.extensions.trackers.hook", when="trackers.names")
