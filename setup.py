"""Contents of the wheel; everything else is in pyproject.toml.

The packages find presets, icons and documents through trainer_core/system/program_files.py. The launcher and its files
are for other machines (trainer_core/remote/host.py).
"""

from setuptools import find_packages, setup

PACKAGES = find_packages(include=["app*", "trainer_core*"])
DATA = ["*.json", "*.jsonl", "images/*", "neutral_texts/*"]
BESIDE_PACKAGES = [
    *("LICENSE", "*.md", "constraints.txt", "pyproject.toml", "train_gpu.py", "train_gpu.sh"),
    *("assets/*.png", "assets/icons/*", "docs/*.*", "docs/images/*", "launcher/*.*", "presets/*.yaml"),
]

setup(
    packages=[*PACKAGES, "trainer_core.program"],
    package_dir={"trainer_core.program": "."},
    package_data={**dict.fromkeys(PACKAGES, DATA), "trainer_core.program": BESIDE_PACKAGES},
    include_package_data=False,
    data_files=[
        ("share/applications", ["assets/traindeck.desktop"]),
        ("share/icons/hicolor/256x256/apps", ["assets/traindeck.png"]),
    ],
)
