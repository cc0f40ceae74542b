"""What pyproject.toml cannot say: the C extension and the tag of its wheel."""

import sysconfig

from setuptools import setup

# One wheel for CPython 3.10 and later: cffi's glue uses the stable ABI only.  A
# free-threaded interpreter has no stable ABI and gets a wheel of its own.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    wheel_options = {}
else:
    wheel_options = {"py_limited_api": "cp310"}

setup(
    cffi_modules=["src/logstore/_native/build_ffi.py:ffibuilder"],
    options={"bdist_wheel": wheel_options},
)
