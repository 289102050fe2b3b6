"""What is installed: one package. `lowering` and `runtime` are parts of it, also where a checkout has no symbolic links."""

from setuptools import find_packages, setup

INSIDE = ("lowering", "runtime")

inside = find_packages(include=[pattern for name in INSIDE for pattern in (name, f"{name}.*")])
setup(
    packages=sorted(
        {*find_packages(include=["kernel_dsl", "kernel_dsl.*"]), *(f"kernel_dsl.{name}" for name in inside)}
    ),
    package_dir={f"kernel_dsl.{name}": name for name in INSIDE},
)
