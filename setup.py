"""What pyproject.toml cannot say: the C modules, the jar, the tag of their wheel, and
the page of the distribution."""

import os
import re
import runpy
import subprocess
import sysconfig

from setuptools import setup
from setuptools.command.build_py import build_py

BUILD = "src/logstore/_native/build_ffi.py"
BUILD_JAR = "connectors/spark/pyspark_logstore/jvm/build_jar.py"
# Of a link or a picture in Markdown that leads into the repository.
RELATIVE = re.compile(r"(!?)(\[[^]]*\])\((?!\w+:|#)([^)\s]+)\)")


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


def page(repository):
    """The README and the addresses for the page of the distribution.

    The page has no files beside it, so its links need the address of the repository,
    which the release gives as LOGSTORE_REPOSITORY ("": they stay as they are).
    """
    with open("README.md", encoding="utf-8") as file:
        text = file.read()
    if not repository:
        return text, {}
    with open("src/logstore/__init__.py", encoding="utf-8") as file:
        tag = "v" + re.search(r'^__version__ = "(.+)"$', file.read(), re.M)[1]

    def absolute(match):
        sign, label, path = match.groups()
        kind = "raw" if sign else "blob"
        return f"{sign}{label}({repository}/{kind}/{tag}/{path})"

    urls = {
        "Source": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/guide.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    return RELATIVE.sub(absolute, text), urls


# One wheel for CPython 3.10 and later: all modules use the stable ABI only.  A
# free-threaded interpreter has no stable ABI and gets a wheel of its own.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    wheel_options = {}
else:
    wheel_options = {"py_limited_api": "cp310"}

readme, project_urls = page(os.environ.get("LOGSTORE_REPOSITORY", "").rstrip("/"))
setup(
    cmdclass={"build_py": BuildWithJar},
    cffi_modules=[f"{BUILD}:ffibuilder"],
    ext_modules=runpy.run_path(BUILD)["python_extensions"](),
    options={"bdist_wheel": wheel_options},
    long_description=readme,
    long_description_content_type="text/markdown",
    project_urls=project_urls,
)
