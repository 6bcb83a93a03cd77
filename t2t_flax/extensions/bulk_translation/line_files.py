"""Line-by-line processing of a file, resumable after a stop.

The commands of this extension use it.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from t2t_flax.cli.lines import (
    Answer,
    Line,
    Signalled,
    answer_windows,
    arrives_slowly,
    is_stream,
    open_output,
    stop_signals,
    to_stderr,
    window_size,
    windows,
)
from t2t_flax.config.keys import PRINTED, TRANSLATIONS
from t2t_flax.config.schema import keys_that_change
from t2t_flax.errors import STOPPED, UserError
from t2t_flax.extensions.bulk_translation.resumable_output import ResumableOutput
from t2t_flax.files import is_remote

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel


def output_settings(loaded: "TrainedModel", flags: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the answers of a restored run depend on.

    Batch sizes and the mesh may change when resuming.

    Args:
        flags: command-line flags with an effect on the output.
    """
    from t2t_flax.training.checksums import checksums

    return (
        loaded.config.compared(keys_that_change(TRANSLATIONS, PRINTED))
        | flags
        | {
            "checkpoints": list(loaded.steps),
            "parameters": sum(checksums(loaded.params).values()),
            "tokenizers": loaded.tokenizers.digest,
            "type of the products": loaded.decoder.dtype,
        }
        | ({} if loaded.decoder.name == "jax" else {"engine": str(loaded.decoder)})
    )


def run_lines(
    command: str,
    verb: str,
    lines: Iterator[Line],
    start: Callable[[], tuple["TrainedModel", Answer, dict[str, Any]]],
    *,
    source: str,
    output: str,
    resume: bool,
) -> int:
    """Answer all lines of the file `source` into the file or stream `output`.

    Returns 0 if every line is answered, 2 if some cannot be translated. After a signal: 75 if
    --resume can go on, else 128 plus the signal's number. Raises UserError, which says how to go
    on.

    Args:
        start: called first; loads the run and returns it, its answer function and the settings of
            the output.
        verb: verb for progress reports.
    """
    writer: ResumableOutput | None = None
    try:
        with stop_signals() as check:
            loaded, answer, settings = start()
            check()

            def answer_to(write: Callable[[list[Line], str, int], None]) -> int:
                arriving = windows(
                    lines, window_size(loaded), live=arrives_slowly(source), check=check
                )
                return answer_windows(verb, answer, arriving, write, check=check)

            if is_stream(output) or is_remote(output):
                with open_output(output) as write:
                    return answer_to(lambda _, text, failed: write(text))
            with ResumableOutput(output, settings, resume=resume, command=command) as writer:
                writer.skip(lines)
                answer_to(writer.append)
                code = writer.code()
                writer.finish()
    except Signalled as signalled:
        to_stderr(
            f"t2t_flax {command}: stopped by {signalled}.{writer.how_to_go_on() if writer else ''}"
        )
        return STOPPED if writer else 128 + signalled.number
    except UserError as error:
        raise UserError(f"{error}{writer.how_to_go_on() if writer else ''}") from None
    return code
