"""Serving: translation over HTTP, with LibreTranslate's API and a page."""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "serve",
    Command(
        "t2t_flax.extensions.serving.command",
        "translate over HTTP: LibreTranslate's API, a page, metrics",
    ),
)
