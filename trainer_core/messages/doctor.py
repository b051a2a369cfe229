# ruff: noqa: E501 - one text a line
"""The words of `doctor`: part of the catalogue in messages.py, kept apart for its length.

Each code has (what, what to do) in English and in Chinese. Imports nothing of the project.
"""

from __future__ import annotations

from typing import Final

Texts = tuple[str, str]

DOCTOR: Final[dict[str, tuple[Texts, Texts]]] = {
    # --- around the findings -------------------------------------------------------------------
    "doctor.level_ok": (("ok", ""), ("正常", "")),
    "doctor.level_note": (("note", ""), ("提示", "")),
    "doctor.level_problem": (("problem", ""), ("问题", "")),
    "doctor.title": (("Traindeck {version} on {platform}", ""), ("Traindeck {version}，{platform}", "")),
    "doctor.all_well": (("Nothing stands in the way of training.", ""), ("可以开始训练。", "")),
    "doctor.problems": (
        ("Problems found: {count}. Solve them from the top down.", ""),
        ("发现问题：{count} 个。请自上而下逐一解决。", ""),
    ),
    "doctor.check_failed": (
        ("“{check}” could not be looked at: {reason}.", "Training may work all the same."),
        ("无法检查“{check}”：{reason}。", "训练仍可能正常。"),
    ),
    # --- Python and packages -------------------------------------------------------------------
    "doctor.python": (("Python {version}, {bits} bit: {path}", ""), ("Python {version}，{bits} 位：{path}", "")),
    "doctor.python_version": (
        (
            "Python {version} is not supported; Traindeck runs on 3.11 to 3.13.",
            "Install Python 3.12, then run `{command}`.",
        ),
        ("不支持 Python {version}；Traindeck 需要 3.11 到 3.13。", "请安装 Python 3.12，再运行 `{command}`。"),
    ),
    "doctor.python_bits": (
        (
            "This Python is a {bits} bit build, for which there is no PyTorch.",
            "Install the 64 bit one, then run `{command}`.",
        ),
        ("此 Python 是 {bits} 位版本，没有对应的 PyTorch。", "请安装 64 位版本，再运行 `{command}`。"),
    ),
    "doctor.no_venv": (
        (
            "This Python is not Traindeck's own virtual environment.",
            "Start Traindeck through `{launcher}`, which keeps one.",
        ),
        ("当前 Python 不是 Traindeck 自己的虚拟环境。", "请通过 `{launcher}` 启动，它会自行维护虚拟环境。"),
    ),
    "doctor.packages": (("Packages: {versions}", ""), ("软件包：{versions}", "")),
    "doctor.package_broken": (
        ("The package {name} cannot be used: {reason}.", "Run `{command}`."),
        ("软件包 {name} 无法使用：{reason}。", "请运行 `{command}`。"),
    ),
    # --- PyTorch -------------------------------------------------------------------------------
    "doctor.torch_cpu": (("PyTorch {version}, built for the CPU.", ""), ("PyTorch {version}，CPU 版。", "")),
    "doctor.torch_cuda": (
        ("PyTorch {version}, built for CUDA {cuda}; it computes on {gpus} GPU(s).", ""),
        ("PyTorch {version}，CUDA {cuda} 版；可使用 {gpus} 块 GPU。", ""),
    ),
    "doctor.torch_other": (("PyTorch {version}, built for {build}.", ""), ("PyTorch {version}，{build} 版。", "")),
    "doctor.torch_missing": (
        ("PyTorch is not installed.", "Run `{command}`."),
        ("未安装 PyTorch。", "请运行 `{command}`。"),
    ),
    "doctor.torch_broken": (
        ("PyTorch cannot be imported: {reason}.", "Run `{command}`."),
        ("无法导入 PyTorch：{reason}。", "请运行 `{command}`。"),
    ),
    "doctor.vc_runtime": (
        (
            "PyTorch cannot load one of its libraries (WinError {number}); most often the Visual C++ runtime is missing.",
            "Install https://aka.ms/vs/17/release/vc_redist.x64.exe, then try again; if that changes nothing, run `{command}`.",
        ),
        (
            "PyTorch 无法加载所需的库（WinError {number}），通常是缺少 Visual C++ 运行库。",
            "请安装 https://aka.ms/vs/17/release/vc_redist.x64.exe 后重试；若无改变，请运行 `{command}`。",
        ),
    ),
    "doctor.torch_slow": (
        (
            "PyTorch was not imported within {seconds} seconds.",
            "Try again; if it stays so, exclude Traindeck's folder from the virus scanner.",
        ),
        ("PyTorch 在 {seconds} 秒内未能导入。", "请重试；若仍如此，请将 Traindeck 的文件夹加入杀毒软件的排除项。"),
    ),
    "doctor.torch_is_cpu": (
        (
            "There is an NVIDIA driver ({driver}), but PyTorch is a build for the CPU, so the GPU is idle.",
            "Run `{command}`.",
        ),
        ("已安装 NVIDIA 驱动（{driver}），但 PyTorch 是 CPU 版，无法使用 GPU。", "请运行 `{command}`。"),
    ),
    "doctor.driver_old": (
        (
            "The NVIDIA driver {driver} runs CUDA up to {driver_cuda}, but PyTorch is built for CUDA {cuda}.",
            "Update the driver from https://www.nvidia.com/drivers, or run `{command}`.",
        ),
        (
            "NVIDIA 驱动 {driver} 最高支持 CUDA {driver_cuda}，而 PyTorch 是 CUDA {cuda} 版。",
            "请从 https://www.nvidia.com/drivers 更新驱动，或运行 `{command}`。",
        ),
    ),
    "doctor.cuda_unusable": (
        (
            "PyTorch is built for CUDA {cuda} but cannot use a GPU: {reason}.",
            "Restart the computer, then run `{command}`.",
        ),
        ("PyTorch 是 CUDA {cuda} 版，但无法使用 GPU：{reason}。", "请重启电脑，再运行 `{command}`。"),
    ),
    "doctor.gpu_unusable": (
        (
            "PyTorch cannot compute on the {name}: {reason}.",
            "Run `{command}`; if that changes nothing, update the driver.",
        ),
        ("PyTorch 无法在 {name} 上计算：{reason}。", "请运行 `{command}`；若无改变，请更新驱动。"),
    ),
    # --- GPU and driver --------------------------------------------------------------------------
    "doctor.driver": (
        ("NVIDIA driver {driver}, runs CUDA up to {driver_cuda}.", ""),
        ("NVIDIA 驱动 {driver}，最高支持 CUDA {driver_cuda}。", ""),
    ),
    "doctor.gpu_bf16": (
        ("GPU {index}: {name}, {vram_gib} GiB, compute capability {capability}, computes bf16.", ""),
        ("GPU {index}：{name}，{vram_gib} GiB，计算能力 {capability}，支持 bf16。", ""),
    ),
    "doctor.gpu_fp16": (
        ("GPU {index}: {name}, {vram_gib} GiB, compute capability {capability}; no bf16, fp16 is used.", ""),
        ("GPU {index}：{name}，{vram_gib} GiB，计算能力 {capability}；不支持 bf16，将使用 fp16。", ""),
    ),
    "doctor.gpu": (("GPU {index}: {name}, {vram_gib} GiB.", ""), ("GPU {index}：{name}，{vram_gib} GiB。", "")),
    "doctor.gpu_small": (
        ("GPU {index} ({name}) has {vram_gib} GiB of memory, little for training.", "Use the preset `gpu_small`."),
        ("GPU {index}（{name}）只有 {vram_gib} GiB 显存，训练偏少。", "请使用预设 `gpu_small`。"),
    ),
    "doctor.no_driver": (
        (
            "No NVIDIA driver was found, so training runs on the CPU, many times slower than on a GPU.",
            "If this machine has an NVIDIA card, install its driver from https://www.nvidia.com/drivers, then run `{command}`.",
        ),
        (
            "未找到 NVIDIA 驱动，将在 CPU 上训练，比 GPU 慢很多倍。",
            "若本机有 NVIDIA 显卡，请从 https://www.nvidia.com/drivers 安装驱动，再运行 `{command}`。",
        ),
    ),
    "doctor.no_devices": (
        (
            "The NVIDIA driver is there, but it finds no card.",
            "Check that the card is seated, powered and not disabled.",
        ),
        ("NVIDIA 驱动已安装，但未找到显卡。", "请检查显卡是否插好、供电，且未被禁用。"),
    ),
    "doctor.driver_restart": (
        ("The NVIDIA driver was updated but the old one still runs ({reason}).", "Restart the computer."),
        ("NVIDIA 驱动已更新，但旧版本仍在运行（{reason}）。", "请重启电脑。"),
    ),
    "doctor.driver_broken": (
        (
            "An NVIDIA driver is installed but does not answer: {reason}.",
            "Restart the computer; if that changes nothing, install the driver anew.",
        ),
        ("已安装 NVIDIA 驱动，但它没有响应：{reason}。", "请重启电脑；若无改变，请重新安装驱动。"),
    ),
    # --- memory and disk -----------------------------------------------------------------------
    "doctor.cpu": (("{name}, {cores} cores, {threads} threads.", ""), ("{name}，{cores} 核，{threads} 线程。", "")),
    "doctor.ram": (
        ("RAM: {total_gib} GiB, of which {free_gib} GiB are available.", ""),
        ("内存：{total_gib} GiB，可用 {free_gib} GiB。", ""),
    ),
    "doctor.ram_low": (
        (
            "RAM: {total_gib} GiB, of which only {free_gib} GiB are available.",
            "Close other programs, or set low_memory.",
        ),
        ("内存：{total_gib} GiB，仅剩 {free_gib} GiB 可用。", "请关闭其他程序，或开启 low_memory。"),
    ),
    "doctor.page_file": (("Page file: {gib} GiB.", ""), ("页面文件：{gib} GiB。", "")),
    "doctor.page_file_small": (
        (
            "The page file has only {gib} GiB. PyTorch's GPU libraries ask Windows for much memory at their start, which "
            "can fail with “WinError 1455”.",
            "Let Windows manage the page file: System > Advanced system settings > Performance > Advanced > Virtual memory.",
        ),
        (
            "页面文件只有 {gib} GiB。PyTorch 的 GPU 库启动时会申请大量内存，可能出现“WinError 1455”。",
            "请让 Windows 自动管理页面文件：系统 > 高级系统设置 > 性能 > 高级 > 虚拟内存。",
        ),
    ),
    "doctor.disk": (
        ("{path} can be written; {free_gib} GiB are free.", ""),
        ("{path} 可写，剩余 {free_gib} GiB。", ""),
    ),
    "doctor.disk_low": (
        (
            "The disk of {path} has only {free_gib} GiB free.",
            "Checkpoints need room: free some, or set TRAINDECK_HOME.",
        ),
        ("{path} 所在磁盘仅剩 {free_gib} GiB。", "检查点需要空间：请腾出一些，或设置 TRAINDECK_HOME。"),
    ),
    "doctor.not_writable": (
        ("{path} cannot be written: {reason}.", "Move Traindeck into a folder of yours, or set TRAINDECK_HOME to one."),
        ("无法写入 {path}：{reason}。", "请把 Traindeck 移到自己的文件夹，或将 TRAINDECK_HOME 设为这样的文件夹。"),
    ),
    "doctor.long_paths": (
        (
            "{path} is a long path ({length} characters), and Windows allows 260 here.",
            "Move Traindeck to a shorter one such as C:\\Traindeck, or turn on long paths in Windows.",
        ),
        (
            "{path} 路径较长（{length} 个字符），而 Windows 在此只允许 260 个。",
            "请把 Traindeck 移到较短的路径（如 C:\\Traindeck），或在 Windows 中启用长路径。",
        ),
    ),
    "doctor.synced_folder": (
        (
            "{path} is in a folder that {service} synchronises: it would upload every checkpoint and hold files open.",
            "Move Traindeck elsewhere, or set TRAINDECK_HOME to a folder outside.",
        ),
        (
            "{path} 位于 {service} 同步的文件夹中：每个检查点都会被上传，文件也会被占用。",
            "请把 Traindeck 移到别处，或将 TRAINDECK_HOME 设为其外的文件夹。",
        ),
    ),
    # --- what makes it faster or nicer ---------------------------------------------------------
    "doctor.compiler": (("C++ compiler: {path}", ""), ("C++ 编译器：{path}", "")),
    "doctor.no_compiler": (
        (
            "No C++ compiler was found. Training works; torch.compile on the CPU does not.",
            "Only if you want it: {package}.",
        ),
        ("未找到 C++ 编译器。训练不受影响；只是 CPU 上无法使用 torch.compile。", "如有需要，请安装：{package}。"),
    ),
    "doctor.triton": (
        ("Triton {version}: torch.compile can be used on the GPU.", ""),
        ("Triton {version}：GPU 可使用 torch.compile。", ""),
    ),
    "doctor.no_triton": (
        (
            "Triton was not found. Training works; torch.compile on the GPU does not.",
            "Only if you want it: `{python} -m pip install {package}`.",
        ),
        (
            "未找到 Triton。训练不受影响；只是 GPU 上无法使用 torch.compile。",
            "如有需要，请运行 `{python} -m pip install {package}`。",
        ),
    ),
    "doctor.encoding": (("Terminal encoding: {encoding}.", ""), ("终端编码：{encoding}。", "")),
    "doctor.encoding_poor": (
        (
            "The terminal's encoding {encoding} cannot show every language. Files and training are not affected.",
            "Start through `{launcher}`, or set PYTHONUTF8=1.",
        ),
        (
            "终端编码 {encoding} 无法显示所有语言。文件和训练不受影响。",
            "请通过 `{launcher}` 启动，或设置 PYTHONUTF8=1。",
        ),
    ),
}
