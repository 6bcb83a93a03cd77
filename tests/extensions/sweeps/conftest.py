import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from stand_in import grid  # noqa: E402, F401
