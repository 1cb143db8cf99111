"""Let the tests beside this file import the virtual network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
