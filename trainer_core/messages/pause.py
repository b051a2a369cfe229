"""Words of pauses: memory that is given back, and programs that want the card. Part of `messages.CATALOGUE`.

No torch, no Qt.
"""

from __future__ import annotations

from typing import Final

from trainer_core.messages.engine import Pair

PAUSE: Final[dict[str, Pair]] = {
    "pause.no_room": (
        (
            "Paused, but the GPU keeps the {needed_mib} of this run: neither system memory nor the disk has room.",
            "Close other programs or free disk space before the next pause, or stop the run to free the GPU.",
        ),
        (
            "已暂停，但本次运行的 {needed_mib} 仍留在显存中：系统内存和磁盘都没有足够空间。",
            "下次暂停前请关闭其他程序或清理磁盘；也可停止运行以释放显卡。",
        ),
    ),
    "pause.memory_taken": (
        (
            "Training cannot go on yet: it needs {needed_mib} of GPU memory, and other programs have left {free_mib}.",
            "Close what uses the GPU and training goes on by itself; Stop saves the run without the GPU.",
        ),
        (
            "暂时无法继续训练：需要 {needed_mib} 显存，其他程序只留下 {free_mib}。",
            "请关闭占用显卡的程序，训练会自动继续；停止时无需显卡即可保存。",
        ),
    ),
    "pause.other_program": (
        (
            "Paused for {name}, which uses the GPU.",
            "Training goes on a minute after it has finished; Resume goes on at once.",
        ),
        ("已为正在使用显卡的 {name} 暂停训练。", "该程序结束一分钟后自动继续；点击“继续”可立即继续。"),
    ),
}
