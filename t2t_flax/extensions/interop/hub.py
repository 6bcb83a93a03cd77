"""Folders on the Hugging Face Hub: `hub:USER/NAME`.

`hub:USER/NAME@REVISION` reads one revision. The token comes from HF_TOKEN or `hf auth login`;
HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE keep their meaning.
"""

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2t_flax.errors import UserError, first_line, install_hint

PREFIX = "hub:"
_NAME = re.compile(r"hub:([\w][\w.-]*/[\w][\w.-]*)(?:@([\w][\w./-]*))?", re.ASCII)
_READ = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.json", "target_vocab.json", "source.spm", "target.spm", "sentencepiece.bpe.model",
    "tokenizer.json", "*_vocabulary.json", "*_vocabulary.txt", "vmap.txt", "tokenizer/*",
    "model-*.safetensors", "model.safetensors", "model.safetensors.index.json", "model.bin",
    "weights.npz",
)  # fmt: skip
"""File patterns that readers of models need; weights are in order of preference.

Other files of a repository are not downloaded.
"""
_SECOND_CHOICE = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
"""Same weights as model.safetensors, read if that is missing."""
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
"""HTTP libraries whose network errors huggingface_hub raises.

They depend on its version.
"""


def is_hub(name: str) -> bool:
    return name.startswith(PREFIX)


def check_push(name: str) -> str:
    """Return the USER/NAME of `hub:USER/NAME`.

    Raises UserError for another name, without huggingface_hub and without a token.
    """
    repo, revision = _parsed("--push", name)
    if revision:
        raise UserError(
            f"--push={name}: a push makes the new revision of main; leave out @{revision}."
        )
    if not _client(name).get_token():
        raise UserError(
            f"--push={name} needs a token that may write: `hf auth login`, or the variable"
            " HF_TOKEN."
        )
    return repo


def push(folder: str | Path, name: str, *, public: bool = False) -> str:
    """Upload a folder as one commit and return its address.

    A repository that does not exist is created, private unless `public`; files that are only in the
    repository stay. Raises UserError as `check_push`, and for errors of the Hub; the folder is not
    changed.
    """
    repo, hub = check_push(name), _client(name)
    later = shlex.join(["hf", "upload", repo, str(folder), *([] if public else ["--private"])])
    stays = f"{folder} is written; `{later}` sends it later"
    with _explained(f"--push={name}", stays):
        hub.create_repo(repo, private=not public, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repo, folder_path=str(folder), commit_message="Export of t2t_flax"
        )
    return (
        str(commit.repo_url)
        if getattr(commit, "repo_url", None)
        else f"https://huggingface.co/{repo}"
    )


def pull(name: str) -> Path:
    """Return the files that `import` reads, in the cache of huggingface_hub.

    Only new files are downloaded. Raises UserError for a wrong name, and for a model or revision
    that does not exist or cannot be reached.
    """
    repo, revision = _parsed("--from", name)
    hub = _client(name)
    with _explained(f"--from={name}"):
        options = {"revision": revision or None}
        folder = Path(hub.snapshot_download(repo, allow_patterns=list(_READ), **options))
        if (folder / "config.json").exists() and not any(
            (folder / file).exists() for file in _READ[-4:]
        ):
            hub.snapshot_download(repo, allow_patterns=[*_READ, *_SECOND_CHOICE], **options)
        if not folder.exists():
            raise UserError(
                f"--from={name} is not a model that can be read: it has none of {', '.join(_READ)}."
            )
        return folder


def _parsed(flag: str, name: str) -> tuple[str, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        form = "hub:USER/NAME" + ("@REVISION, or without @REVISION" if flag == "--from" else "")
        raise UserError(f"{flag}={name}: expected {form}.")
    return match[1], match[2] or ""


def _client(name: str) -> Any:
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise UserError(
            f"{name} needs the package huggingface_hub: {install_hint('hf')}."
        ) from None
    return huggingface_hub


@contextlib.contextmanager
def _explained(what: str, stays: str = "") -> Iterator[None]:
    """Convert errors to UserError, in one line."""
    import huggingface_hub.errors as hub_errors

    end = f" {stays}." if stays else ""
    try:
        yield
    except (
        hub_errors.GatedRepoError,
        hub_errors.RevisionNotFoundError,
        hub_errors.HFValidationError,
    ) as error:
        raise UserError(f"{what}: {first_line(error)}{end}") from None
    except hub_errors.RepositoryNotFoundError:
        raise UserError(
            f"{what}: there is no such model, or it is private and the token (`hf auth login`,"
            f" HF_TOKEN) may not read it.{end}"
        ) from None
    except hub_errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = {
            401: "the token is not valid: `hf auth login`, or another HF_TOKEN",
            403: (
                "the token may not do this: it needs the permission to write, and the account to be"
                " USER or of its organization"
            ),
        }.get(status or 0, f"the Hub answered: {first_line(error)}")
        raise UserError(f"{what}: {reason}.{end}") from None
    except (hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled):
        raise UserError(
            f"{what}: the Hub cannot be reached, and the cache does not hold it.{end}"
        ) from None
    except Exception as error:
        if (
            not isinstance(error, OSError)
            and type(error).__module__.partition(".")[0] not in _HTTP_LIBRARIES
        ):
            raise
        raise UserError(
            f"{what}: the Hub cannot be reached ({first_line(error) or type(error).__name__}).{end}"
        ) from None
