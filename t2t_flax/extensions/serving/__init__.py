"""Serving: translation over HTTP, with a page."""

from t2t_flax.registry import add_command

add_command(
    "serve", "t2t_flax.extensions.serving.command", "translate over HTTP: LibreTranslate's API, a page, metrics"
)
