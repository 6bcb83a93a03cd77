import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from fake_sweep import fake_sweep, finished, finished_sweep  # noqa: E402, F401
