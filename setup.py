"""What is installed from here: in a clone `helpers`, as the notebooks import it; in a wheel `gpu_memory_workbook`.

A wheel goes into environments of other projects, and `helpers` is a name that those have themselves. So the same folder
is packed under another name there, with its command and its pytest plugin; inside, all imports are relative.
"""

import atexit
import shutil
import sys
import tempfile

from setuptools import find_namespace_packages, setup

NAME = "helpers" if "editable_wheel" in sys.argv else "gpu_memory_workbook"
PLUGIN = f"{NAME}.memory.meter.pytest_plugin"

# Never here: `python -m pytest` has this folder on its path, and would load the plugin of whatever was built last.
BESIDE = tempfile.mkdtemp()
atexit.register(shutil.rmtree, BESIDE, ignore_errors=True)
shutil.rmtree("gpu_memory_workbook.egg-info", ignore_errors=True)

setup(
    options={"egg_info": {"egg_base": BESIDE}},
    packages=[NAME, *(f"{NAME}.{room}" for room in find_namespace_packages("helpers"))],
    package_dir={NAME: "helpers"},
    # The plugin has its module's own name: pytest then finds one and not two where a conftest.py names it as well.
    entry_points={"console_scripts": [f"workbook = {NAME}.cli:main"], "pytest11": [f"{PLUGIN} = {PLUGIN}"]},
)
