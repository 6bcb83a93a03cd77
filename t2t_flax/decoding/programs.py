"""The jitted functions of decoding."""

import functools
from collections.abc import Callable
from typing import Any

import jax


class Program:
    """A jitted function of a module. `Program.run` makes all calls: an extension replaces it to compile programs in another way.
    Results of abstract arguments (`jax.ShapeDtypeStruct`) are abstract, too.

    static_argnums, options: as of `jax.jit`.
    """

    run: Callable[["Program", tuple[Any, ...]], Any] = staticmethod(lambda program, args: _run_jitted(program, args))

    def __init__(self, function: Callable, static_argnums: tuple[int, ...] = (), **options: Any):
        functools.update_wrapper(self, function)
        self.static_argnums, self.jitted = static_argnums, jax.jit(function, static_argnums=static_argnums, **options)
        self.lower, self._name = self.jitted.lower, function.__qualname__

    def __call__(self, *args: Any) -> Any:
        return Program.run(self, args)

    def __reduce__(self) -> str:
        return self._name  # pickled as a function: by name


def program(*static_argnums: int, **options: Any) -> Callable[[Callable], Program]:
    """Decorator that makes a `Program` of a function."""
    return lambda function: Program(function, static_argnums, **options)


def any_abstract(args: tuple[Any, ...]) -> bool:
    """Whether one of the arguments is abstract."""
    return any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(args))


def _run_jitted(program: Program, args: tuple[Any, ...]) -> Any:
    return program.jitted.trace(*args).out_info if any_abstract(args) else program.jitted(*args)
