"""Words of failures that nobody named where they were raised: what `failures.py` finds. Part of `messages.CATALOGUE`.

Each says what happened and its likely cause, then the remedy. No torch, no Qt.
"""

from __future__ import annotations

from typing import Final, Literal

from trainer_core.messages.engine import Pair

Ending = Literal["FAILED", "DATA", "OUT_OF_MEMORY", "DEVICE"]
"""Name of the `messages.ExitCode` that the trainer ends with."""

_RESUME: Final = "Resume from the last checkpoint"
_ZH_RESUME: Final = "请从最近的检查点继续"

_GPU: Final[dict[str, Pair]] = {
    "failure.no_kernel_image": (
        (
            "This PyTorch holds no code for this GPU: the card is older, or newer, than PyTorch was built for.",
            "Run the set-up again, which picks the right PyTorch, or train with --device cpu.",
        ),
        (
            "此 PyTorch 不含适用于该显卡的代码：显卡比 PyTorch 所支持的更旧或更新。",
            "请重新运行安装程序以选择合适的 PyTorch，或用 --device cpu 训练。",
        ),
    ),
    "failure.driver_too_old": (
        (
            "The NVIDIA driver is too old for this PyTorch.",
            "Install the newest driver from nvidia.com, or run the set-up again for a PyTorch that fits.",
        ),
        (
            "NVIDIA 驱动程序对此 PyTorch 而言过旧。",
            "请从 nvidia.cn 安装最新驱动，或重新运行安装程序以选择合适的 PyTorch。",
        ),
    ),
    "failure.no_driver": (
        (
            "There is no working NVIDIA driver on this machine.",
            "Install the driver from nvidia.com and restart the machine, or train with --device cpu.",
        ),
        ("本机没有可用的 NVIDIA 驱动程序。", "请从 nvidia.cn 安装驱动并重启电脑，或用 --device cpu 训练。"),
    ),
    "failure.driver_mismatch": (
        (
            "The NVIDIA driver was updated while it was in use, or its parts do not belong together.",
            "Restart the machine; if that does not help, install the driver again.",
        ),
        ("NVIDIA 驱动在使用中被更新，或其组件版本不一致。", "请重启电脑；如仍无效，请重新安装驱动。"),
    ),
    "failure.cpu_torch": (
        (
            "A GPU is asked for, but the installed PyTorch was built for CPUs only.",
            "Run the set-up again to install PyTorch for the GPU, or train with --device cpu.",
        ),
        (
            "要求使用显卡，但已安装的 PyTorch 仅支持 CPU。",
            "请重新运行安装程序以安装支持显卡的 PyTorch，或用 --device cpu 训练。",
        ),
    ),
    "failure.device_assert": (
        (
            "The GPU was given a number out of range, most likely a token that the vocabulary does not have.",
            "Check that tokenizer and data belong to this run; --device cpu says where it happens.",
        ),
        (
            "显卡收到了超出范围的数值，多半是词表中不存在的词元。",
            "请确认分词器和数据属于本次运行；用 --device cpu 可看到出错的位置。",
        ),
    ),
    "failure.illegal_access": (
        (
            "The GPU touched memory that is not its own: a fault of a kernel, of the driver or of an overclocked card.",
            f"{_RESUME}; if it recurs, undo overclocking, update the driver and try --compile off.",
        ),
        (
            "显卡访问了不属于它的内存：可能是内核、驱动或超频显卡的故障。",
            f"{_ZH_RESUME}；若再次出现，请取消超频、更新驱动，并尝试 --compile off。",
        ),
    ),
    "failure.launch": (
        (
            "The GPU stopped in the middle of its work, mostly for heat, power or overclocking.",
            f"{_RESUME}; if it recurs, undo overclocking, check power and cooling, and update the driver.",
        ),
        (
            "显卡在运算中途停止，多由过热、供电或超频引起。",
            f"{_ZH_RESUME}；若再次出现，请取消超频、检查供电和散热，并更新驱动。",
        ),
    ),
    "failure.launch_timeout": (
        (
            "The GPU took so long over one piece of work that the system stopped it: it also draws the screen.",
            f"{_RESUME} with a smaller --batch-size, or raise TdrDelay of Windows.",
        ),
        (
            "显卡的一次运算耗时过长，被系统中止：该显卡同时负责显示。",
            f"{_ZH_RESUME}并减小 --batch-size，或增大 Windows 的 TdrDelay。",
        ),
    ),
    "failure.ecc": (
        (
            "The GPU found damaged memory (an ECC error), so the result of this step cannot be trusted.",
            f"{_RESUME}; if it recurs, restart the machine, and have the card tested.",
        ),
        (
            "显卡发现显存数据损坏（ECC 错误），这一步的结果不可信。",
            f"{_ZH_RESUME}；若再次出现，请重启电脑并检测显卡。",
        ),
    ),
    "failure.gpu_lost": (
        (
            "The GPU no longer answers: it has fallen off the bus, mostly for heat, power or a loose contact.",
            "Restart the machine, check power cables and cooling, then resume from the last checkpoint.",
        ),
        (
            "显卡不再响应：它已从总线上断开，多由过热、供电或接触不良引起。",
            "请重启电脑，检查电源线和散热，再从最近的检查点继续。",
        ),
    ),
    "failure.driver_reset": (
        (
            "The GPU's driver was reset or met an error that it cannot name.",
            f"{_RESUME}; if it does not start, restart the machine.",
        ),
        ("显卡驱动被重置，或遇到了无法说明的错误。", f"{_ZH_RESUME}；若无法启动，请重启电脑。"),
    ),
    "failure.gpu_busy": (
        (
            "Another program holds the GPU for itself alone.",
            "End that program (nvidia-smi lists them), then resume.",
        ),
        ("另一个程序独占了显卡。", "请结束该程序（可用 nvidia-smi 查看），然后继续。"),
    ),
    "failure.gpu_library": (
        (
            "A library of NVIDIA (cuBLAS or cuDNN) failed, mostly after another GPU error or for want of memory.",
            f"{_RESUME}; if it recurs, lower --batch-size and update the driver.",
        ),
        (
            "NVIDIA 的库（cuBLAS 或 cuDNN）出错，多由显卡的其他错误或显存不足引起。",
            f"{_ZH_RESUME}；若再次出现，请减小 --batch-size 并更新驱动。",
        ),
    ),
    "failure.gpu_library_refused": (
        (
            "A library of NVIDIA (cuBLAS or cuDNN) does not do this on this GPU.",
            "Try --attention auto and --compile off; update the driver and run the set-up again.",
        ),
        (
            "NVIDIA 的库（cuBLAS 或 cuDNN）在该显卡上不支持此运算。",
            "请尝试 --attention auto 和 --compile off；更新驱动并重新运行安装程序。",
        ),
    ),
    "failure.nccl_timeout": (
        (
            "One GPU waited in vain for the others: a process among them hangs or died.",
            f"{_RESUME}; the log of the first process that failed tells why.",
        ),
        ("某块显卡等待其他显卡超时：其中一个进程停滞或已退出。", f"{_ZH_RESUME}；最先出错的进程的日志会说明原因。"),
    ),
    "failure.nccl": (
        (
            "The GPUs could not talk to each other (NCCL).",
            f"{_RESUME}; if it recurs, set NCCL_DEBUG=INFO and read the log.",
        ),
        ("显卡之间无法通信（NCCL）。", f"{_ZH_RESUME}；若再次出现，请设置 NCCL_DEBUG=INFO 并查看日志。"),
    ),
    "failure.peer_lost": (
        (
            "Another process of this run went away, or the network between them failed.",
            f"{_RESUME}; the log of the first process that failed tells why.",
        ),
        ("本次运行的另一个进程已退出，或它们之间的网络中断。", f"{_ZH_RESUME}；最先出错的进程的日志会说明原因。"),
    ),
}

_MEMORY: Final[dict[str, Pair]] = {
    "failure.page_file": (
        (
            "Windows ran out of virtual memory: the paging file is too small.",
            "Let Windows manage the size of the paging file, close other programs, or lower --num-workers.",
        ),
        (
            "Windows 的虚拟内存不足：页面文件太小。",
            "请让 Windows 自动管理页面文件大小，关闭其他程序，或减小 --num-workers。",
        ),
    ),
    "failure.killed": (
        (
            "Another program ended it at once; mostly it is the system, when the machine's memory is full.",
            "Lower --batch-size or --num-workers or close other programs, then resume from the last checkpoint.",
        ),
        (
            "它被强行结束；多半是内存耗尽时由系统结束的。",
            "请减小 --batch-size 或 --num-workers，或关闭其他程序，再从最近的检查点继续。",
        ),
    ),
    "failure.shared_memory": (
        (
            "Shared memory (/dev/shm) ran out, which loader processes pass their batches through.",
            "Train with --num-workers 0, or give the container more (docker run --shm-size 8g).",
        ),
        (
            "共享内存（/dev/shm）不足，加载进程需通过它传递数据。",
            "请用 --num-workers 0 训练，或为容器分配更多共享内存（docker run --shm-size 8g）。",
        ),
    ),
    "failure.worker_died": (
        (
            "A process that loads batches died, mostly for want of memory.",
            f"{_RESUME}; if it recurs, lower --num-workers (0: none).",
        ),
        ("一个加载数据的进程退出，多因内存不足。", f"{_ZH_RESUME}；若再次出现，请减小 --num-workers（0 表示不用）。"),
    ),
}

_FILES: Final[dict[str, Pair]] = {
    "failure.encoding": (
        (
            "A text file is not in the encoding that it was read with: {reason}.",
            "Save the file as UTF-8, or start with PYTHONUTF8=1.",
        ),
        ("某个文本文件的编码与读取时所用的编码不符：{reason}。", "请将该文件存为 UTF-8，或设置 PYTHONUTF8=1 后启动。"),
    ),
    "failure.too_many_files": (
        (
            "Too many files are open at once.",
            "Lower --num-workers, or raise the limit (ulimit -n 65536), then resume.",
        ),
        ("同时打开的文件过多。", "请减小 --num-workers，或提高上限（ulimit -n 65536），然后继续。"),
    ),
    "failure.path_too_long": (
        (
            "The path is too long for this system: {path}",
            "Choose a shorter --run-dir or --cache-dir, or turn on long paths in Windows.",
        ),
        ("路径过长：{path}", "请为 --run-dir 或 --cache-dir 选择更短的路径，或在 Windows 中启用长路径。"),
    ),
    "failure.permission": (
        (
            "The system does not allow access to {path}.",
            "Change its permissions, or allow it in the virus scanner (controlled folder access).",
        ),
        ("系统不允许访问 {path}。", "请修改其权限，或在杀毒软件中放行（受控文件夹访问）。"),
    ),
    "failure.file_held": (
        (
            "Another program holds {path} open.",
            "Close it (a virus scanner, a synchronised folder, a viewer), then resume.",
        ),
        ("另一个程序占用了 {path}。", "请将其关闭（杀毒软件、同步文件夹、查看器等），然后继续。"),
    ),
    "failure.network_drive": (
        (
            "The network drive of {path} is gone.",
            "Connect it again, then resume; runs are safer on a disk of this machine.",
        ),
        ("{path} 所在的网络驱动器已断开。", "请重新连接后继续；把运行放在本机磁盘上更安全。"),
    ),
    "failure.disk_error": (
        (
            "The disk of {path} could not be read or written: it may be failing.",
            "Save what matters from it, check the disk, and use another one.",
        ),
        ("{path} 所在磁盘无法读写：磁盘可能已损坏。", "请备份重要数据，检查磁盘，并换用其他磁盘。"),
    ),
    "failure.mapped_file": (
        (
            "A file that was being read went away: its disk or network drive did not answer.",
            "Check that disk, then resume from the last checkpoint; data is safer on a disk of this machine.",
        ),
        (
            "正在读取的文件无法访问：其磁盘或网络驱动器没有响应。",
            "请检查该磁盘，再从最近的检查点继续；把数据放在本机磁盘上更安全。",
        ),
    ),
}

_SET_UP: Final[dict[str, Pair]] = {
    "failure.compile": (
        (
            "Compiling the model failed: a compiler or Triton is missing, or does not fit this PyTorch or GPU.",
            "Train with --compile off, or run `doctor` to see what is missing.",
        ),
        (
            "编译模型失败：缺少编译器或 Triton，或其与此 PyTorch、显卡不匹配。",
            "请用 --compile off 训练，或运行 `doctor` 查看缺少什么。",
        ),
    ),
    "failure.library_missing": (
        (
            "A library that Python needs is missing, mostly the Visual C++ runtime of Windows.",
            "Install it from https://aka.ms/vs/17/release/vc_redist.x64.exe, then run the set-up again.",
        ),
        (
            "缺少 Python 所需的库，在 Windows 上多为 Visual C++ 运行库。",
            "请从 https://aka.ms/vs/17/release/vc_redist.x64.exe 安装，再重新运行安装程序。",
        ),
    ),
    "failure.library_mismatch": (
        (
            "Two installed libraries do not belong together: one lacks a function that the other calls.",
            "Run the set-up again; it installs versions that fit.",
        ),
        ("已安装的两个库版本不匹配：其中一个缺少另一个所需的函数。", "请重新运行安装程序，它会安装匹配的版本。"),
    ),
    "failure.library_architecture": (
        (
            "A library is damaged, or made for another kind of processor (32 bits instead of 64).",
            "Run the set-up again, with a 64-bit Python.",
        ),
        ("某个库已损坏，或用于其他处理器（32 位而非 64 位）。", "请用 64 位 Python 重新运行安装程序。"),
    ),
    "failure.library_start": (
        (
            "A library could not start; often the Visual C++ runtime is too old, or Windows is low on memory.",
            "Install https://aka.ms/vs/17/release/vc_redist.x64.exe, restart the machine and try again.",
        ),
        (
            "某个库无法启动；常因 Visual C++ 运行库过旧或 Windows 内存不足。",
            "请安装 https://aka.ms/vs/17/release/vc_redist.x64.exe，重启电脑后再试。",
        ),
    ),
    "failure.blocked": (
        (
            "The virus scanner or a policy of this machine blocked a file of Python or PyTorch.",
            "Allow Traindeck's folder in it, then run the set-up again.",
        ),
        ("杀毒软件或本机策略阻止了 Python 或 PyTorch 的文件。", "请放行 Traindeck 的文件夹，再重新运行安装程序。"),
    ),
    "failure.cpu_instruction": (
        (
            "This processor lacks an instruction that PyTorch uses (mostly AVX2).",
            "Use a machine with a newer processor; in a virtual machine, pass the processor's features through.",
        ),
        (
            "该处理器缺少 PyTorch 所用的指令（多为 AVX2）。",
            "请使用处理器较新的电脑；若在虚拟机中，请启用处理器特性直通。",
        ),
    ),
}

_ENDINGS: Final[dict[str, Pair]] = {
    "failure.stack": (
        ("The program used up its stack: something called itself without end.", "Please report it with the log."),
        ("程序用尽了栈空间：某段代码无休止地调用自身。", "请将日志反馈给我们。"),
    ),
    "failure.access_violation": (
        (
            "It crashed: a library touched memory that is not its own (driver, overclocking, or damaged memory).",
            "If it recurs, update the driver, undo overclocking and test the memory.",
        ),
        (
            "它崩溃了：某个库访问了不属于它的内存（驱动、超频或内存损坏）。",
            "若再次出现，请更新驱动、取消超频并检测内存。",
        ),
    ),
    "failure.abort": (
        (
            "It ended itself: a library found an error that it could not go on with.",
            "The end of log.txt tells which library it was.",
        ),
        ("它自行终止：某个库发现了无法继续的错误。", "log.txt 末尾说明是哪个库。"),
    ),
    "failure.heap": (
        (
            "It crashed: its memory was damaged, by a fault of a library or of the machine's memory.",
            "If it recurs, run the set-up again and test the memory.",
        ),
        (
            "它崩溃了：其内存被破坏，原因可能是某个库的故障或内存条故障。",
            "若再次出现，请重新运行安装程序并检测内存。",
        ),
    ),
    "failure.interrupted": (
        (
            "It was ended from outside: Ctrl+C, its console was closed, or the user logged off.",
            "Everything saved before is intact.",
        ),
        ("它被外部结束：按下了 Ctrl+C、关闭了控制台或用户注销。", "此前保存的内容完好。"),
    ),
    "failure.terminated": (
        (
            "Another program asked it to end, or the machine was shut down.",
            "Everything saved before is intact.",
        ),
        ("另一个程序要求它结束，或电脑已关机。", "此前保存的内容完好。"),
    ),
}


FAILURES: Final[dict[str, tuple[Ending, Pair]]] = {
    **{code: ("DEVICE", pair) for code, pair in _GPU.items()},
    **{code: ("OUT_OF_MEMORY", pair) for code, pair in _MEMORY.items()},
    **{code: ("FAILED", pair) for code, pair in (_FILES | _SET_UP | _ENDINGS).items()},
    "failure.encoding": ("DATA", _FILES["failure.encoding"]),
}
"""Code: the exit code of the trainer, and (what, do) in English and in Chinese."""
