"""logstore: a durable, partitioned log in Apache Kafka's on-disk format, in a library.

    import logstore

    with logstore.open("data") as store:
        orders = store.create_topic("orders", partitions=4, exist_ok=True)
        orders.append(b"value", key=b"key")
        for record in orders[0].read():
            print(record.offset, record.key, record.value)

Everything promised is in ``logstore.__all__``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logstore._public import *  # noqa: F403
    from logstore._public import __all__ as __all__

__version__ = "0.1.0"

# Public functions; those of the second line have the names of packages, too.
_FUNCTIONS = frozenset({"doctor", "inspect_file", "open", "rebuild_index"})
_SHADOWED = frozenset({"repair", "verify"})
# Public, too, but loaded when they are used themselves: a service that never looks at a
# report does not wait for it.
_REPORTING = frozenset({"Report", "report"})
_LATE = frozenset({*_REPORTING, "metrics"})


class _Package(ModuleType):
    """This package. Its public names (`logstore._public`) are imported all at once when
    the first of them is used: `logstore-dump --help` does not wait for the engine."""

    def __getattr__(self, name: str) -> Any:
        if name in _REPORTING:
            reporting = importlib.import_module("logstore.maintenance.report")
            self.__dict__.update({key: getattr(reporting, key) for key in _REPORTING})
            return self.__dict__[name]
        is_public = name in _FUNCTIONS or name in _SHADOWED or name[0].isupper()
        if name == "__all__" or is_public:
            return self._public_name(name)
        if name.startswith("__"):
            raise _missing(name)
        if name == "metrics":
            return importlib.import_module("logstore.metrics")
        # A module inside, perhaps: `from logstore import ...` imports it then.
        raise _missing(name)

    def _public_name(self, name: str) -> Any:
        public = sys.modules.get("logstore._public")
        if public is None:
            public = importlib.import_module("logstore._public")
            now = [key for key in public.__all__ if key not in _LATE]
            names = {key: getattr(public, key) for key in now}
            self.__dict__.update(names, __all__=public.__all__)
        try:
            return self.__dict__[name]
        except KeyError:
            raise _missing(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets the package here when a module inside it is imported:
        # `logstore.verify` is the function all the same.
        if not (name in _SHADOWED and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__getattr__("__all__")})


def _missing(name: str) -> AttributeError:
    return AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


sys.modules[__name__].__class__ = _Package
