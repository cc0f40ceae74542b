"""What pyproject.toml cannot say: the C modules and the tag of their wheel."""

import runpy
import sysconfig

from setuptools import setup

BUILD = "src/logstore/_native/build_ffi.py"

# One wheel for CPython 3.10 and later: all modules use the stable ABI only.  A
# free-threaded interpreter has no stable ABI and gets a wheel of its own.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    wheel_options = {}
else:
    wheel_options = {"py_limited_api": "cp310"}

setup(
    cffi_modules=[f"{BUILD}:ffibuilder"],
    ext_modules=runpy.run_path(BUILD)["python_extensions"](),
    options={"bdist_wheel": wheel_options},
)
