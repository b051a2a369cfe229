"""Words of advice: what is seen, why it matters, what to do. Part of `messages.CATALOGUE`.

Advice is about a run that goes on, so what to do is for the next start; its `fix` names knobs and values where it
can. No torch, no Qt.
"""

from __future__ import annotations

from typing import Final

from trainer_core.messages.engine import Pair

_SPEED: Final[dict[str, Pair]] = {
    "advice.data_bound": (
        (
            "The model waits for its data: {percent}% of each step ({ms} ms) goes into it, with {workers} loader "
            "processes.",
            "Raise --num-workers or --prefetch-factor, or put the data on a faster disk.",
        ),
        (
            "模型在等待数据：每步有 {percent}% 的时间（{ms} 毫秒）用于等待，加载进程数为 {workers}。",
            "请增大 --num-workers 或 --prefetch-factor，或把数据放到更快的磁盘上。",
        ),
    ),
    "advice.sync_bound": (
        (
            "{percent}% of each step ({ms} ms) goes into adding up the gradients of {ranks} processes.",
            "Have each step compute more before that, with a larger --gradient-accumulation-steps (now {steps}; the "
            "effective batch grows with it), or train with fewer --ranks.",
        ),
        (
            "每步有 {percent}% 的时间（{ms} 毫秒）用于汇总 {ranks} 个进程的梯度。",
            "请增大 --gradient-accumulation-steps（现为 {steps}，有效批次随之变大），让每步在汇总前多算一些，"
            "或减少 --ranks。",
        ),
    ),
    "advice.gpu_idle": (
        (
            "The GPU works only {percent}% of the time, though its data comes in time: steps are too small to be "
            "started as fast as it computes them.",
            "Turn on --compile and --cuda-graphs, or raise --batch-size (now {batch_size}).",
        ),
        (
            "显卡只有 {percent}% 的时间在工作，而数据并未迟到：每步的计算太小，启动跟不上计算。",
            "请开启 --compile 和 --cuda-graphs，或增大 --batch-size（现为 {batch_size}）。",
        ),
    ),
    "advice.batch_small": (
        (
            "The batch is too small for this card: it reaches {busy}% of its speed and uses {memory}% of its "
            "{total_gib} GiB of memory.",
            "Double --batch-size (now {batch_size}); with gradient accumulation, halve that.",
        ),
        (
            "对这块显卡来说批次太小：只达到其速度的 {busy}%，{total_gib} GiB 显存只用了 {memory}%。",
            "请将 --batch-size（现为 {batch_size}）加倍；若使用梯度累积，请将其减半。",
        ),
    ),
}

_MACHINE: Final[dict[str, Pair]] = {
    "advice.vram_spill": (
        (
            "The {total_gib} GiB of the GPU are full, and {spilled_gib} GiB have overflowed into system memory, which "
            "makes steps many times as slow.",
            "Halve --batch-size and double --gradient-accumulation-steps, or close other programs that use the GPU.",
        ),
        (
            "{total_gib} GiB 显存已满，有 {spilled_gib} GiB 溢出到系统内存，使每步慢许多倍。",
            "请将 --batch-size 减半并将 --gradient-accumulation-steps 加倍，或关闭其他使用显卡的程序。",
        ),
    ),
    "advice.vram_slow": (
        (
            "The {total_gib} GiB of the GPU are full and steps take {times} times as long as before ({ms} ms): memory "
            "overflows into system memory, most likely.",
            "Halve --batch-size and double --gradient-accumulation-steps, or close other programs that use the GPU.",
        ),
        (
            "{total_gib} GiB 显存已满，每步耗时为此前的 {times} 倍（{ms} 毫秒）：多半是显存溢出到了系统内存。",
            "请将 --batch-size 减半并将 --gradient-accumulation-steps 加倍，或关闭其他使用显卡的程序。",
        ),
    ),
    "advice.thermal": (
        (
            "The GPU is too hot ({degrees} °C) and has slowed itself down for over a minute: {mhz} MHz, after up to "
            "{highest} MHz.",
            "Clean its fans, let air reach it, or lower its power limit; training goes on safely, but slower.",
        ),
        (
            "显卡过热（{degrees} °C），已降频超过一分钟：现为 {mhz} MHz，此前最高 {highest} MHz。",
            "请清理风扇、改善通风，或降低功耗上限；训练可安全继续，但会变慢。",
        ),
    ),
    "advice.power": (
        (
            "The GPU is held back by its power supply (limit {limit_w} W): {mhz} MHz, after up to {highest} MHz.",
            "Plug the laptop in with its own adapter, choose the system's highest performance, or check power cables.",
        ),
        (
            "显卡受供电限制（上限 {limit_w} 瓦）：现为 {mhz} MHz，此前最高 {highest} MHz。",
            "请为笔记本接上原装电源、选择系统的最高性能模式，或检查电源线。",
        ),
    ),
    "advice.gpu_shared": (
        (
            "Other programs hold {others_gib} of the {total_gib} GiB of the GPU, which this run cannot use.",
            "Close games, browsers and other training (nvidia-smi lists them).",
        ),
        (
            "其他程序占用了显卡 {total_gib} GiB 显存中的 {others_gib} GiB，本次运行无法使用。",
            "请关闭游戏、浏览器和其他训练（可用 nvidia-smi 查看）。",
        ),
    ),
    "advice.battery": (
        (
            "This machine runs on its battery: it computes slower and will switch itself off in the middle of the run.",
            "Plug it in; should it go off, the run goes on from its last checkpoint.",
        ),
        (
            "电脑正在使用电池：计算更慢，且会在运行中途关机。",
            "请接上电源；若已关机，可从最近的检查点继续。",
        ),
    ),
    "advice.slept": (
        (
            "The computer slept for about {minutes} minutes in the middle of the run; nothing was lost but that time.",
            "Turn on --keep-awake, and sleep off in the system's power settings; a closed lid may override both.",
        ),
        (
            "电脑在运行中途睡眠了约 {minutes} 分钟；除时间外没有损失。",
            "请开启 --keep-awake，并在系统电源设置中关闭睡眠；合上笔记本盖子可能使二者失效。",
        ),
    ),
    "advice.ram_full": (
        (
            "System memory is nearly full: {used_gib} of {total_gib} GiB, of which this run holds {own_gib} GiB; the "
            "system may soon slow down or end programs.",
            "Close other programs, or train with --low-memory.",
        ),
        (
            "系统内存将满：{total_gib} GiB 已用 {used_gib} GiB，其中本次运行占 {own_gib} GiB；系统可能变慢或结束程序。",
            "请关闭其他程序，或使用 --low-memory 训练。",
        ),
    ),
    "advice.disk_low": (
        (
            "The disk has {free_gib} GiB free, but the next checkpoints need {needed_gib} GiB.",
            "Free some space before then, or keep fewer with --keep-last.",
        ),
        (
            "磁盘剩余 {free_gib} GiB，而接下来的检查点需要 {needed_gib} GiB。",
            "请尽快腾出空间，或用 --keep-last 少保留一些。",
        ),
    ),
    "advice.memory_moves": (
        (
            "Memory has ended {moves} times; each time a step was done twice.",
            "Begin the next run with what fits and learns the same: --batch-size {batch_size} and "
            "--gradient-accumulation-steps {steps}.",
        ),
        (
            "内存已不足 {moves} 次，每次都有一步被重做。",
            "下次请用 --batch-size {batch_size} 和 --gradient-accumulation-steps {steps}：放得下，且有效批大小不变。",
        ),
    ),
}

_LEARNING: Final[dict[str, Pair]] = {
    "advice.not_finite": (
        (
            "{count} of {steps} steps had gradients that are no numbers (NaN or infinity) and were left out.",
            "Lower --learning-rate (now {rate}) to a third; if it recurs, look for odd samples in the data.",
        ),
        (
            "{steps} 步中有 {count} 步的梯度不是有效数值（NaN 或无穷大），已略过。",
            "请将 --learning-rate（现为 {rate}）降至三分之一；若再次出现，请检查数据中的异常样本。",
        ),
    ),
    "advice.loss_spike": (
        (
            "The loss jumped to {loss} at step {step}, from about {usual}, and has stayed there.",
            "Mostly it comes back by itself; if not, resume from a checkpoint before it with a lower --learning-rate.",
        ),
        (
            "损失在第 {step} 步由约 {usual} 跃升至 {loss}，且尚未回落。",
            "通常会自行恢复；否则请从此前的检查点继续，并减小 --learning-rate。",
        ),
    ),
    "advice.rate_high": (
        (
            "The learning rate ({rate}) seems too high: the loss went from {before} to {now} (mere guessing has "
            "{guess}), {bad}% of the steps were left out, and {clipped}% had gradients cut to less than a fifth.",
            "Start again with a third of --learning-rate.",
        ),
        (
            "学习率（{rate}）似乎过高：损失由 {before} 变为 {now}（随机猜测为 {guess}），{bad}% 的步被略过，"
            "{clipped}% 的步梯度被裁剪到五分之一以下。",
            "请用三分之一的 --learning-rate 重新开始。",
        ),
    ),
    "advice.overfitting": (
        (
            "It learns its data by heart: the eval loss rose from {best} (step {best_step}) to {now} while the train "
            "loss kept falling.",
            "Use the best checkpoint ({checkpoint}); next time stop there, add data, or choose a smaller model.",
        ),
        (
            "模型在死记硬背：评估损失由 {best}（第 {best_step} 步）升至 {now}，而训练损失仍在下降。",
            "请使用最佳检查点（{checkpoint}）；下次请在该处停止、增加数据或选择更小的模型。",
        ),
    ),
    "advice.plateau": (
        (
            "Nothing was gained over the last {evaluations} evaluations: the eval loss stands at {now} ({before} "
            "before).",
            "Stop here, or train on with a schedule that lowers --learning-rate, with more data or a larger model.",
        ),
        (
            "最近 {evaluations} 次评估没有进步：评估损失为 {now}（此前 {before}）。",
            "可在此停止，或改用会降低 --learning-rate 的调度、更多数据或更大的模型。",
        ),
    ),
    "advice.truncated": (
        (
            "{count} of {total} samples ({percent}%) are longer than {limit} tokens: their ends, often the answers, "
            "are not learned.",
            "Raise --max-seq-len; with half of --batch-size that takes about the same memory.",
        ),
        (
            "{total} 个样本中有 {count} 个（{percent}%）超过 {limit} 个词元：其末尾（常为回答）不会被学习。",
            "请增大 --max-seq-len；同时将 --batch-size 减半，占用的内存大致不变。",
        ),
    ),
}

ADVICE: Final[dict[str, Pair]] = {**_SPEED, **_MACHINE, **_LEARNING}
"""Code: (what, do) in English and in Chinese."""
