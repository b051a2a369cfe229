"""What the launcher says, in Chinese.

Sentences are translated as they are shown, by what they look like: the log stays English, because it goes into reports
that others read, and the code that says something has one way to say it.
"""

import functools
import re

# In English as the code makes them, {} for what differs; that may be a sentence or a reason that is in this table too.
SENTENCES = (
    # starting
    ("ERROR: {}", "错误：{}"),
    ("WARNING: {}", "警告：{}"),
    (
        "Traindeck must be able to write in {}; is the disk full, or another running?",
        "Traindeck 必须能写入 {}；磁盘是否已满，或另有一个正在运行？",
    ),
    ("Interrupted. Start again to go on from here.", "已中断。再次启动即可从这里继续。"),
    ("Traindeck is ready: PyTorch {}", "Traindeck 已就绪：PyTorch {}"),
    ("Traindeck starts; this console closes by itself.", "Traindeck 正在启动；本控制台会自行关闭。"),
    ("The window could not start (exit code {}):", "窗口无法启动（退出码 {}）："),
    ("Made {}", "已创建 {}"),
    ("Shortcuts are made on Windows only.", "快捷方式只能在 Windows 上创建。"),
    # why something is set up
    ("Setting up Traindeck in {}: {}. Details: {}", "正在安装 Traindeck 到 {}：{}。详情见 {}"),
    ("this is the first start", "这是第一次启动"),
    ("an earlier set-up did not finish", "上一次安装没有完成"),
    ("PyTorch was changed from {} to {} since then", "此后 PyTorch 由 {} 变成了 {}"),
    ("nothing", "无"),
    ("the tests need their tools", "测试需要相应的工具"),
    ("the requirements, the choices, Python or the driver changed", "依赖、选项、Python 或驱动有变化"),
    ("the NVIDIA driver can be used now", "现在可以使用 NVIDIA 驱动"),
    ("another PyTorch fits this GPU and its driver", "另一版本的 PyTorch 更适合当前显卡及其驱动"),
    # setting up
    (
        "Packages: {} (setup --environment here: beside train_gpu.py)",
        "软件包：{}（setup --environment here：放在 train_gpu.py 旁）",
    ),
    (
        "the path {} has {} characters; over {} the packages may not fit into what Windows allows. Should that "
        "fail: {}",
        "路径 {} 有 {} 个字符；超过 {} 个时，软件包可能超出 Windows 允许的长度。如果失败：{}",
    ),
    ("Runs: {} (set TRAINDECK_HOME for another folder)", "训练结果：{}（设置 TRAINDECK_HOME 可换文件夹）"),
    (
        "put the packages elsewhere (setup --environment C:\\Traindeck), or move Traindeck nearer to C:\\.",
        "把软件包放到别处（setup --environment C:\\Traindeck），或把 Traindeck 移到更靠近 C:\\ 的位置。",
    ),
    ("The folder for the packages cannot be made: {}.", "无法创建软件包的文件夹：{}。"),
    ("Choose another: setup --environment PATH (or auto)", "请另选一个：setup --environment 路径（或 auto）"),
    (
        "TRAINDECK_ENVIRONMENT={} goes before --environment: unset it first.",
        "TRAINDECK_ENVIRONMENT={} 优先于 --environment：请先取消该变量。",
    ),
    ("The packages in {} are no longer used: that folder can be deleted.", "{} 中的软件包不再使用：可以删除该文件夹。"),
    ("There is no constraints file {}", "找不到版本约束文件 {}"),
    ("constraints.txt pins no torch version", "constraints.txt 没有指定 torch 的版本"),
    ("Another set-up is running (process {}); waiting for it.", "另一个安装正在进行（进程 {}），等待其结束。"),
    ("Python could not make {}:", "Python 无法创建 {}："),
    (".venv is made anew: {}", "重新创建 .venv：{}"),
    ("it is missing", "它不存在"),
    ("its Python {}", "其中的 Python {}"),
    ("another Python was chosen", "选择了另一个 Python"),
    ("{} was left half-installed", "{} 只安装了一半"),
    ("an interrupted removal left {}", "中断的卸载留下了 {}"),
    ("it has no pip", "其中没有 pip"),
    ("Set up in {} s.", "安装完成，用时 {} 秒。"),
    # what takes long
    ("making {}", "正在创建 {}"),
    ("preparing {}", "正在准备 {}"),
    ("looking for PyTorch", "正在查找 PyTorch"),
    ("installing PyTorch", "正在安装 PyTorch"),
    ("installing the other packages", "正在安装其他软件包"),
    ("trying PyTorch out", "正在试用 PyTorch"),
    ("trying the window's packages out", "正在试用窗口的软件包"),
    ("{}: {} s so far", "{}：已用 {} 秒"),
    # Python
    (
        "Traindeck needs Python 3.11, 3.12 or 3.13, and none was found:",
        "Traindeck 需要 Python 3.11、3.12 或 3.13，但没有找到：",
    ),
    ("The chosen Python cannot be used:", "所选的 Python 不能使用："),
    ("Choose another: setup --python PATH (or auto)", "请另选一个：setup --python 路径（或 auto）"),
    ("does not run ({})", "不能运行（{}）"),
    ("no answer", "没有响应"),
    ("Python {} is too old", "Python {} 太旧"),
    ("Python {} is too new", "Python {} 太新"),
    ("Python {} is a {}-bit build; PyTorch needs 64 bits", "Python {} 是 {} 位版本；PyTorch 需要 64 位"),
    (
        "Python {} is a free-threaded build, for which not every package has wheels",
        "Python {} 是自由线程版本，并非所有软件包都支持",
    ),
    (
        "Python {} has no venv module; on Debian and Ubuntu: sudo apt install python3-venv",
        "Python {} 没有 venv 模块；在 Debian 和 Ubuntu 上：sudo apt install python3-venv",
    ),
    ("the Microsoft Store placeholder", "Microsoft Store 的占位程序"),
    (
        "Install Python 3.12 (64 bit) from https://www.python.org/downloads/windows/ and start again.",
        "请从 https://www.python.org/downloads/windows/ 安装 Python 3.12（64 位），然后重新启动。",
    ),
    ("Install one, for example: {}   (or pyenv install 3.12)", "请安装一个，例如：{}（或 pyenv install 3.12）"),
    # PyTorch
    ("PyTorch build: {} ({})", "PyTorch 版本：{}（{}）"),
    ("chosen", "由用户指定"),
    ("no NVIDIA driver found", "未找到 NVIDIA 驱动"),
    (
        "an NVIDIA driver is installed but does not answer; try nvidia-smi",
        "已安装 NVIDIA 驱动，但它没有响应；请运行 nvidia-smi 查看",
    ),
    ("driver {}", "驱动 {}"),
    ("driver {}, compute capability {}", "驱动 {}，计算能力 {}"),
    ("PyTorch no longer supports this GPU (compute capability {})", "PyTorch 不再支持这块 GPU（计算能力 {}）"),
    (
        "driver {} is too old for this GPU and PyTorch; install {} or newer, then start again",
        "驱动 {} 对这块 GPU 和 PyTorch 来说太旧；请安装 {} 或更新的版本，然后重新启动",
    ),
    ("There is no PyTorch build {}; there are {}.", "没有 PyTorch 版本 {}；可选：{}。"),
    ("Unknown mirror {}: use {}, none, or URL[,TORCH_URL]", "未知的镜像 {}：可用 {}、none 或 URL[,TORCH_URL]"),
    ("PyTorch {} from {}", "PyTorch {}，来自 {}"),
    ("the mirror", "镜像"),
    ("the sources pip is configured with", "pip 所配置的源"),
    (
        "No CPU-only build was found; taking the CUDA build, which works too but is several GB.",
        "没有找到纯 CPU 版本；改用 CUDA 版本，同样可用，但有数 GB。",
    ),
    ("{} gave a CPU-only PyTorch ({}) instead of {}.", "{} 给出的是纯 CPU 版 PyTorch（{}），而不是 {}。"),
    ("No source has PyTorch {} ({}) for this Python:", "没有任何源为此 Python 提供 PyTorch {}（{}）："),
    ("{} from {}: not there", "{}，来自 {}：没有"),
    ("{} from {}: no answer", "{}，来自 {}：没有响应"),
    (
        "Check the network (and HTTPS_PROXY), or name a mirror: setup --mirror tsinghua",
        "请检查网络（和 HTTPS_PROXY），或指定镜像：setup --mirror tsinghua",
    ),
    (
        "Check the network (and HTTPS_PROXY), or name a mirror: setup --mirror tsinghua, or do without the GPU: setup "
        "--torch cpu",
        "请检查网络（和 HTTPS_PROXY），或指定镜像：setup --mirror tsinghua，或不使用 GPU：setup --torch cpu",
    ),
    ("PyTorch {} could not be installed:", "无法安装 PyTorch {}："),
    ("The packages could not be installed:", "无法安装软件包："),
    ("Installing the packages changed PyTorch from {} to {}.", "安装软件包时，PyTorch 由 {} 变成了 {}。"),
    ("PyTorch cannot be imported:", "无法导入 PyTorch："),
    ("PyTorch cannot use the GPU:", "PyTorch 无法使用 GPU："),
    ("(To go on without the GPU: setup --torch cpu)", "（不使用 GPU 继续：setup --torch cpu）"),
    # what went wrong
    ("The disk is full: free some GB and start again.", "磁盘已满：请腾出几 GB，然后重新启动。"),
    (
        "The Microsoft Visual C++ runtime is missing: install {}",
        "缺少 Microsoft Visual C++ 运行库：请安装 {}",
    ),
    ("The folder's path is too long for Windows: {}", "文件夹的路径对 Windows 来说太长：{}"),
    (
        "This PyTorch build has no code for this GPU: try another one with  setup --torch cu126  or  cu130.",
        "此 PyTorch 版本不含适用于这块 GPU 的代码：请用  setup --torch cu126  或  cu130  换一个。",
    ),
    ("Update the NVIDIA driver.", "请更新 NVIDIA 驱动。"),
    (
        "Files are in use or protected: close Traindeck and start again.",
        "文件正在使用或受保护：请关闭 Traindeck，然后重新启动。",
    ),
    (
        "The network did not answer: check it (and HTTPS_PROXY), or use a mirror: setup --mirror tsinghua",
        "网络没有响应：请检查网络（和 HTTPS_PROXY），或使用镜像：setup --mirror tsinghua",
    ),
    ("The package sources lack something; see logs/setup.log.", "软件包源缺少某些内容；见 logs/setup.log。"),
    ("The whole story is in {}", "完整记录见 {}"),
    ("The whole story is in the log.", "完整记录见日志。"),
    ("no words.", "没有说明。"),
    # updates
    ("It is made from nothing: {}", "从头创建：{}"),
    ("Updated in {} s.", "更新完成，用时 {} 秒。"),
    (
        "The update is ready, and takes effect when Traindeck is closed and started again.",
        "更新已就绪，关闭并重新启动 Traindeck 后生效。",
    ),
    ("An earlier update still installs; waiting for it.", "先前的更新仍在安装，等待其结束。"),
    ("The window's packages can no longer be loaded.", "窗口的软件包无法再加载。"),
    ("The update failed, and what was there before goes on working. {}", "更新失败，原有的环境照常可用。{}"),
    ("The update failed, and what was there before goes on working.", "更新失败，原有的环境照常可用。"),
    (
        "The update failed, so Traindeck starts as it was: {} To try again: {}",
        "更新失败，Traindeck 按原样启动：{} 再试一次：{}",
    ),
    (
        "Traindeck starts as it was before an update that failed: {} To try again: {}",
        "此前的更新失败，Traindeck 按原样启动：{} 再试一次：{}",
    ),
    # removal
    (
        "Traindeck is running (process {}): close it, or wait for it, and start again.",
        "Traindeck 正在运行（进程 {}）：请将其关闭或等它结束，然后重新启动。",
    ),
    ("There is nothing to remove.", "没有可删除的内容。"),
    ("This is removed:", "将删除："),
    ("Runs are kept: {}  (uninstall --runs removes them too)", "保留训练结果：{}（uninstall --runs 会一并删除）"),
    (
        "The window's settings and queue are kept: {}  (uninstall --settings removes them too)",
        "保留窗口的设置和队列：{}（uninstall --settings 会一并删除）",
    ),
    ("Remove? [y/N]", "确定删除？[y/N]"),
    ("Nothing was removed.", "没有删除任何内容。"),
    ("In use, remove it later: {}", "正在使用，请稍后删除：{}"),
    ("Traindeck's own folder can be deleted now.", "现在可以删除 Traindeck 自己的文件夹。"),
)


def pattern(sentence: str) -> "re.Pattern[str]":
    return re.compile("(.+?)".join(re.escape(part) for part in sentence.split("{}")))


# The longest first: what a sentence says for itself goes before what it is made of.
KNOWN = [(pattern(english), chinese) for english, chinese in sorted(SENTENCES, key=lambda pair: -len(pair[0]))]


def in_chinese(text: str) -> str:
    """The same in Chinese, line by line, as far as it is known; what pip and others say stays as it is."""
    return "\n".join(translated(line) or line for line in text.split("\n"))


@functools.cache
def translated(line: str) -> str:
    """One line, of one sentence or several; nothing where no part of it is known, or it is no sentence of ours."""
    bare = line.strip()
    if len(bare) > 1000:
        return ""
    around = line.partition(bare) if bare else ("", "", "")
    for known, chinese in KNOWN:
        found = known.fullmatch(bare)
        if found:
            return around[0] + chinese.format(*(translated(part) or part for part in found.groups())) + around[2]
    for end in re.finditer(r"[:.] ", bare):
        first, rest = bare[: end.start() + 1], bare[end.end() :]
        said = translated(first) if first.count(" ") else ""
        others = translated(rest)
        if said or others:
            return around[0] + (said or first + " ") + (others or rest) + around[2]
    return ""
