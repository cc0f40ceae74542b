"""What the commands use of logstore beyond its public names: looking into one file."""

from __future__ import annotations

import importlib
from typing import Any

inspect_file: Any = importlib.import_module("logstore.verify").inspect_file
