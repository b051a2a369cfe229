"""Words of the check before Start. Part of `messages.CATALOGUE`.

No torch, no Qt.
"""

from __future__ import annotations

from typing import Final

from trainer_core.messages.engine import Pair

CHECKING: Final[dict[str, Pair]] = {
    "check.failed": (
        (
            "The check could not run any steps: {reason}.",
            "Start it again; if it ends the same way, `doctor` looks for what is wrong.",
        ),
        ("检查未能运行任何一步：{reason}。", "请再试一次；若结果相同，请运行 `doctor` 查找原因。"),
    ),
    "check.nothing_fits": (
        (
            "No setting with this effective batch fits: at least {needed_mib} are needed, and {free_mib} of "
            "memory are free.",
            "Choose a smaller model (hidden_dim, n_layers, vocab_size) or shorter sequences (max_seq_len), or close "
            "other programs.",
        ),
        (
            "在此有效批大小下没有可用的设置：至少需要 {needed_mib}，而可用内存为 {free_mib}。",
            "请选择更小的模型（hidden_dim、n_layers、vocab_size）或更短的序列（max_seq_len），或关闭其他程序。",
        ),
    ),
    "check.disk": (
        (
            "The run needs {needed_mib} of disk for checkpoints and prepared data, and {free_mib} are free.",
            "Free some space, or keep fewer checkpoints (keep_last, keep_best).",
        ),
        (
            "运行需要 {needed_mib} 磁盘空间存放检查点和准备好的数据，而剩余 {free_mib}。",
            "请腾出空间，或少保留一些检查点（keep_last、keep_best）。",
        ),
    ),
    "check.no_data": (
        (
            "No data was given: memory and speed are measured, but not how long the run takes.",
            "Name files or folders with --data.",
        ),
        ("没有指定数据：可以测量内存和速度，但无法得知运行时长。", "请用 --data 指定文件或文件夹。"),
    ),
    "check.few_sequences": (
        (
            "The data makes {sequences} sequences, fewer than the {batch} of one update.",
            "Add data, or lower batch_size or gradient_accumulation_steps.",
        ),
        (
            "数据只有 {sequences} 条序列，少于每次更新的 {batch} 条。",
            "请增加数据，或减小 batch_size 或 gradient_accumulation_steps。",
        ),
    ),
    "check.short_sequences": (
        (
            "Conversations take about {mean} of the {limit} tokens that a sequence may have.",
            "Turn packing on, which trains faster, or lower max_seq_len, which spares memory.",
        ),
        (
            "对话平均只占序列 {limit} 个词元中的约 {mean} 个。",
            "请打开 packing（训练更快），或减小 max_seq_len（节省内存）。",
        ),
    ),
    "check.much_cut": (
        (
            "{percent} % of the tokens are cut away, for conversations are longer than {limit} tokens.",
            "Raise max_seq_len, or divide long conversations.",
        ),
        ("对话长于 {limit} 个词元，因此 {percent}% 的词元被截断。", "请增大 max_seq_len，或拆分过长的对话。"),
    ),
}
