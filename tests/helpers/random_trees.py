"""Random trees."""

from t2t_flax.extensions.parsing.trees import Leaf, Node


def random_tree(rng, depth=0):
    if depth and (rng.random() < 0.4 or depth > 5):
        return Leaf(rng.choice(["NN", "VB", ",", "-LRB-", "."]), f"w{rng.randrange(99)}")
    return Node(
        rng.choice(["S", "NP", "VP", "X"]),
        tuple(random_tree(rng, depth + 1) for _ in range(rng.randint(1, 4))),
    )


def with_other_words(tree, words):
    """The same tree over the words of an iterator."""
    if isinstance(tree, Leaf):
        return Leaf(tree.tag, next(words))
    return Node(tree.label, tuple(with_other_words(child, words) for child in tree.children))
