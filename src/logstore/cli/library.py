"""The names of `logstore.verify` that the commands use."""

from __future__ import annotations

import importlib
from typing import Any

_verify: Any = importlib.import_module("logstore.verify")

inspect_file = _verify.inspect_file
rebuild_index = _verify.rebuild_index
verify = _verify.verify
