"""Constituency trees: Penn Treebank bracket files, and linearized trees for the model."""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from t2t_flax.errors import UserError

ROOTS = ("", "TOP", "ROOT", "S1")
"""Labels of the root node above a sentence; it is not part of the linearized form."""
ROOT = "TOP"
UNKNOWN_TAG = "XX"
MAX_DEPTH = 200
"""Maximum nesting: far above real sentences, below Python's recursion limit."""
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
    r"""Yield (first line, tree) for each tree of a bracket file.

    A tree is on one line, or on several as in .mrg. Traces (-NONE-) and constituents that are empty
    without them are removed, as are function tags and indices (NP-SBJ-1 becomes NP). The root is
    always TOP. The Penn Treebank's \/ and \* become / and *. Raises UserError, with file and line,
    for unbalanced brackets, an empty constituent or label, a tree without words, or text outside of
    trees.
    """
    stack: list[tuple[int, list]] = []  # (line of the opening bracket, contents so far)
    for number, line in enumerate(lines, 1):
        for token in _TOKEN.findall(line):
            if token == "(":
                if len(stack) > MAX_DEPTH:
                    raise UserError(
                        f"{name} line {number}: constituents are nested more than {MAX_DEPTH} deep."
                    )
                stack.append((number, []))
            elif not stack:
                problem = (
                    "a ')' without its '('" if token == ")" else f"{token!r} outside of a tree"
                )
                raise UserError(f"{name} line {number}: {problem}.")
            elif token != ")":
                stack[-1][1].append(token)
            else:
                first_line, contents = stack.pop()
                node = _parse_node(contents, f"{name} line {number}", top=not stack)
                if stack:
                    stack[-1][1].append(node)
                    continue
                tree = _add_root(_remove_traces(node))
                if tree is None:
                    raise UserError(f"{name} line {first_line}: a tree without a word.")
                yield first_line, tree
    if stack:
        raise UserError(
            f"{name} line {stack[0][0]}: the tree that begins here lacks {len(stack)} ')'."
        )


def _parse_node(contents: list, where: str, top: bool) -> Node | Leaf:
    words, children = (
        [x for x in contents if isinstance(x, str)],
        [x for x in contents if not isinstance(x, str)],
    )
    if not children and len(words) == 2:
        return Leaf(words[0], unescaped(words[1]))
    if children and contents[: len(words)] == words and (len(words) == 1 or not words and top):
        label = _label(words[0]) if words else ""
        if words and not label:
            raise UserError(f"{where}: ({words[0]} ...) has no label before its function tags.")
        return Node(label, tuple(children))
    if not contents or not children and len(words) == 1:
        raise UserError(
            f"{where}: ({' '.join(words)}) is empty: expected (TAG word) or (LABEL (...) ...)."
        )
    raise UserError(
        f"{where}: ({' '.join(words)} ...) is neither (TAG word) nor (LABEL (...) ...)."
    )


def _remove_traces(tree: Node | Leaf) -> Node | Leaf | None:
    if isinstance(tree, Leaf):
        return None if tree.tag == "-NONE-" else tree
    children = tuple(
        cleaned for child in tree.children if (cleaned := _remove_traces(child)) is not None
    )
    return Node(tree.label, children) if children else None


def _label(text: str) -> str:
    """Return the label without function tags and indices."""
    return text if text.startswith("-") else re.split(r"[-=|]", text)[0]


def _add_root(tree: Node | Leaf | None) -> Node | None:
    if tree is None:
        return None
    return (
        Node(ROOT, tree.children)
        if isinstance(tree, Node) and tree.label in ROOTS
        else Node(ROOT, (tree,))
    )


def leaves(tree: Node | Leaf) -> list[Leaf]:
    """Return the words with their tags, left to right."""
    return (
        [tree]
        if isinstance(tree, Leaf)
        else [leaf for child in tree.children for leaf in leaves(child)]
    )


def unescaped(text: str) -> str:
    """Remove the backslashes that the Penn Treebank puts before / and *."""
    return text.replace("\\/", "/").replace("\\*", "*")


def escaped(text: str) -> str:
    """Replace round brackets with -LRB- and -RRB-, as treebanks do."""
    return text.replace("(", "-LRB-").replace(")", "-RRB-")


def bracketed(tree: Node | Leaf) -> str:
    """Return the tree on one line, `(TOP (S (NP (DT The) ...`.

    It is the inverse of `read_trees`.
    """
    if isinstance(tree, Leaf):
        return f"({tree.tag} {escaped(tree.word)})"
    return f"({tree.label} {' '.join(map(bracketed, tree.children))})"


def linear(tree: Node) -> str:
    """Return the tree without its words and TOP: `(S (NP DT NN )NP (VP VBD )VP . )S`.

    See Vinyals et al. 2015.
    """

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
    """Return (tree of a linearized form over these words, whether it was well-formed).

    A malformed one is repaired. A bracket that closes an outer constituent closes the ones inside
    it too; a closing bracket without an opening one is ignored; open brackets are closed at the
    end. Surplus tags are ignored; words without a tag get XX in the last open constituent.
    Constituents that are empty or nested too deep are removed.
    """
    stack: list[tuple[str, list]] = [(ROOT, [])]
    used, well_formed = 0, True

    def close() -> None:
        nonlocal well_formed
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Node(label, tuple(children)))
        else:
            well_formed = False

    symbols = text.split()
    last_tag = max((i for i, symbol in enumerate(symbols) if not is_bracket(symbol)), default=-1)
    for i, symbol in enumerate(symbols):
        if not is_bracket(symbol):
            well_formed = (
                well_formed and used < len(words) and (i < last_tag or used == len(words) - 1)
            )
            tagged = [Leaf(symbol, word) for word in words[used : used + 1]]
            rest = words[used + 1 :] if i == last_tag else []
            stack[-1][1].extend([*tagged, *(Leaf(UNKNOWN_TAG, word) for word in rest)])
            used += len(tagged) + len(rest)
        elif symbol.startswith("("):
            if len(stack) < MAX_DEPTH:
                stack.append((symbol[1:], []))
            else:
                well_formed = False
        elif symbol[1:] in [label for label, _ in stack[1:]]:
            well_formed = well_formed and stack[-1][0] == symbol[1:]
            while stack[-1][0] != symbol[1:]:
                close()
            close()
        else:
            well_formed = False
    well_formed = well_formed and used == len(words) and len(stack) == 1
    if last_tag < 0:
        stack[-1][1].extend(Leaf(UNKNOWN_TAG, word) for word in words)
    while len(stack) > 1:
        close()
    return Node(ROOT, tuple(stack[0][1])), well_formed


def is_bracket(symbol: str) -> bool:
    """Return whether a symbol of the linearized form is a bracket, not a tag."""
    return symbol[0] in "()" and len(symbol) > 1
