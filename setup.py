"""What pyproject.toml cannot say: the C modules, the jar, the tag of their wheel."""

import os
import runpy
import subprocess
import sysconfig

from setuptools import setup
from setuptools.command.build_py import build_py

BUILD = "src/logstore/_native/build_ffi.py"
BUILD_JAR = "connectors/spark/pyspark_logstore/jvm/build_jar.py"


class BuildWithJar(build_py):
    """Also compiles the reader in Java, if a JDK and Spark's jars are there.

    Without it the build goes on: logstore says so when the reader is asked for, and
    `python -m logstore.spark` compiles it then.
    """

    def run(self):
        if os.path.exists(BUILD_JAR):
            try:
                reason = runpy.run_path(BUILD_JAR)["build"]()
            except subprocess.CalledProcessError:
                reason = "its sources do not compile with this JDK and this Spark"
            if reason:
                self.announce(f"without the reader in Java: {reason}", level=3)
        super().run()


# One wheel for CPython 3.10 and later: all modules use the stable ABI only.  A
# free-threaded interpreter has no stable ABI and gets a wheel of its own.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    wheel_options = {}
else:
    wheel_options = {"py_limited_api": "cp310"}

setup(
    cmdclass={"build_py": BuildWithJar},
    cffi_modules=[f"{BUILD}:ffibuilder"],
    ext_modules=runpy.run_path(BUILD)["python_extensions"](),
    options={"bdist_wheel": wheel_options},
)
