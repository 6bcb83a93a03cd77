"""Asks a server on this machine for its health: exit code 0 if it is well, or if nothing listens there, because a container that
runs another command is well, too; else 1.

    python -m t2t_flax.extensions.serving.healthcheck [http://127.0.0.1:8000]
"""

import sys
import urllib.error
import urllib.request

SECONDS = 8.0


def is_well(url: str, seconds: float = SECONDS) -> bool:
    """Whether the server answers /health with 200 within so many seconds, or there is none."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=seconds):
            return True
    except urllib.error.HTTPError:
        return False
    except urllib.error.URLError as error:
        return isinstance(error.reason, ConnectionRefusedError)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(not is_well(*sys.argv[1:2] or ["http://127.0.0.1:8000"]))
