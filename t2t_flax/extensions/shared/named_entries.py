"""Values by the names of sources, as text: 'NAME=VALUE, NAME=VALUE'."""

from collections.abc import Sequence

from t2t_flax.errors import UserError


def named_entries(
    key: str, text: str, names: Sequence[str], have: str = "data.train has"
) -> dict[str, str]:
    """Return the values of `NAME=VALUE, NAME=VALUE`, by name.

    Raises UserError for a name that is not among `names`.

    Args:
        have: config group of the names with a verb, for the message.
    """
    entries: dict[str, str] = {}
    for entry in (entry for entry in text.split(",") if entry.strip()):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not value:
            raise UserError(f"{key}: {entry.strip()!r} is not of the form NAME=VALUE.")
        if name not in names:
            raise UserError(
                f"{key}: config.{have} no source {name!r}; the sources are"
                f" {', '.join(names) or 'none'}."
            )
        if name in entries:
            raise UserError(f"{key} names {name} twice.")
        entries[name] = value
    return entries
