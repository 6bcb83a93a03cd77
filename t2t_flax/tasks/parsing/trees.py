"""Constituency trees: Penn-Treebank bracket files read and written, and the linear form that a model learns to write."""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from t2t_flax.errors import UserError

ROOTS = ("", "TOP", "ROOT", "S1")
"""Labels of the node above a sentence: it says nothing, and is left out."""
ROOT = "TOP"
UNKNOWN_TAG = "XX"
DEEPEST = 200
"""Constituents within each other: far above any sentence's, and below what Python's recursion can walk."""
_TOKEN = re.compile(r"[()]|[^()\s]+")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A word and its part of speech."""

    tag: str
    word: str


@dataclasses.dataclass(frozen=True)
class Node:
    """A constituent."""

    label: str
    children: tuple["Node | Leaf", ...]


def read_trees(lines: Iterable[str], name: str) -> Iterator[tuple[int, Node]]:
    """(line on which it begins, tree) for each tree of a bracket file: one a line, or over several lines as in .mrg.

    Traces (-NONE-) and what is empty without them go, as do function tags and indices (NP-SBJ-1 becomes NP); the node
    above the sentence is always TOP; the Penn Treebank's \\/ and \\* are the / and * of other text. Raises UserError, with
    file and line, for brackets that do not match, an empty constituent or label, a tree without words, or text outside of
    trees.
    """
    stack: list[tuple[int, list]] = []  # (line of the bracket, what it holds so far)
    for number, line in enumerate(lines, 1):
        for token in _TOKEN.findall(line):
            if token == "(":
                if len(stack) > DEEPEST:
                    raise UserError(f"{name} line {number}: more than {DEEPEST} constituents within each other.")
                stack.append((number, []))
            elif not stack:
                what = "a ')' without its '('" if token == ")" else f"{token!r} outside of a tree"
                raise UserError(f"{name} line {number}: {what}.")
            elif token != ")":
                stack[-1][1].append(token)
            else:
                began, held = stack.pop()
                made = _made(held, f"{name} line {number}", top=not stack)
                if stack:
                    stack[-1][1].append(made)
                    continue
                tree = _rooted(_cleaned(made))
                if tree is None:
                    raise UserError(f"{name} line {began}: a tree without a word.")
                yield began, tree
    if stack:
        raise UserError(f"{name} line {stack[0][0]}: the tree that begins here has {len(stack)} ')' too few.")


def _made(held: list, where: str, top: bool) -> Node | Leaf:
    words, children = [x for x in held if isinstance(x, str)], [x for x in held if not isinstance(x, str)]
    if not children and len(words) == 2:
        return Leaf(words[0], unescaped(words[1]))
    if children and held[: len(words)] == words and (len(words) == 1 or not words and top):
        label = _label(words[0]) if words else ""
        if words and not label:
            raise UserError(f"{where}: ({words[0]} ...) has no label before its function tags.")
        return Node(label, tuple(children))
    if not held or not children and len(words) == 1:
        raise UserError(f"{where}: ({' '.join(words)}) is empty: expected (TAG word) or (LABEL (...) ...).")
    raise UserError(f"{where}: ({' '.join(words)} ...) is neither (TAG word) nor (LABEL (...) ...).")


def _cleaned(tree: Node | Leaf) -> Node | Leaf | None:
    if isinstance(tree, Leaf):
        return None if tree.tag == "-NONE-" else tree
    children = tuple(kept for child in tree.children if (kept := _cleaned(child)) is not None)
    return Node(tree.label, children) if children else None


def _label(text: str) -> str:
    """Without function tags and indices."""
    return text if text.startswith("-") else re.split(r"[-=|]", text)[0]


def _rooted(tree: Node | Leaf | None) -> Node | None:
    if tree is None:
        return None
    return Node(ROOT, tree.children) if isinstance(tree, Node) and tree.label in ROOTS else Node(ROOT, (tree,))


def leaves(tree: Node | Leaf) -> list[Leaf]:
    """The words with their tags, from left to right."""
    return [tree] if isinstance(tree, Leaf) else [leaf for child in tree.children for leaf in leaves(child)]


def unescaped(text: str) -> str:
    """The words without the backslashes that the Penn Treebank writes before / and *."""
    return text.replace("\\/", "/").replace("\\*", "*")


def escaped(text: str) -> str:
    """The words with their round brackets as treebanks write them, where brackets are something else."""
    return text.replace("(", "-LRB-").replace(")", "-RRB-")


def bracketed(tree: Node | Leaf) -> str:
    """One line, `(TOP (S (NP (DT The) ...`: what `read_trees` reads."""
    if isinstance(tree, Leaf):
        return f"({tree.tag} {escaped(tree.word)})"
    return f"({tree.label} {' '.join(map(bracketed, tree.children))})"


def linear(tree: Node) -> str:
    """`(S (NP DT NN )NP (VP VBD )VP . )S`: the tree without its words and without TOP, as Vinyals et al. (2015) have it."""

    def symbols(tree: Node | Leaf) -> Iterator[str]:
        if isinstance(tree, Leaf):
            yield tree.tag
            return
        yield f"({tree.label}"
        for child in tree.children:
            yield from symbols(child)
        yield f"){tree.label}"

    return " ".join(symbol for child in tree.children for symbol in symbols(child))


def from_linear(text: str, words: list[str]) -> tuple[Node, bool]:
    """The tree of a linear form over its words, and whether the form was right as it is.

    One that is not is mended: a bracket that closes an outer constituent closes those inside it, one that closes nothing
    is ignored, what is open at the end is closed; tags beyond the words are ignored, words without a tag get XX and hang
    from the constituent that was open last; constituents without words, and those that are too deep, go.
    """
    stack: list[tuple[str, list]] = [(ROOT, [])]
    used, right = 0, True

    def close() -> None:
        nonlocal right
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Node(label, tuple(children)))
        else:
            right = False

    symbols = text.split()
    last_tag = max((i for i, symbol in enumerate(symbols) if not _is_bracket(symbol)), default=-1)
    for i, symbol in enumerate(symbols):
        if not _is_bracket(symbol):
            right = right and used < len(words) and (i < last_tag or used == len(words) - 1)
            tagged = [Leaf(symbol, word) for word in words[used : used + 1]]
            rest = words[used + 1 :] if i == last_tag else []
            stack[-1][1].extend([*tagged, *(Leaf(UNKNOWN_TAG, word) for word in rest)])
            used += len(tagged) + len(rest)
        elif symbol.startswith("("):
            if len(stack) < DEEPEST:
                stack.append((symbol[1:], []))
            else:
                right = False
        elif symbol[1:] in [label for label, _ in stack[1:]]:
            right = right and stack[-1][0] == symbol[1:]
            while stack[-1][0] != symbol[1:]:
                close()
            close()
        else:
            right = False
    right = right and used == len(words) and len(stack) == 1
    if last_tag < 0:
        stack[-1][1].extend(Leaf(UNKNOWN_TAG, word) for word in words)
    while len(stack) > 1:
        close()
    return Node(ROOT, tuple(stack[0][1])), right


def _is_bracket(symbol: str) -> bool:
    return symbol[0] in "()" and len(symbol) > 1
