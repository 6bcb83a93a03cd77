"""Serving: translation over HTTP, with a page; compiled programs of decoding are kept, for other commands too."""

from t2t_flax.registry import COMMANDS, PROGRAMS, Command

COMMANDS.add(
    "serve",
    Command("t2t_flax.extensions.serving.command", "translate over HTTP: LibreTranslate's API, a page, metrics"),
)
PROGRAMS.add("serving", "t2t_flax.extensions.serving.programs")
