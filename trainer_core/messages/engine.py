"""Words of the engine: fast paths, and why each is used or not; bad steps. Part of `messages.CATALOGUE`.

No torch, no Qt.
"""

from __future__ import annotations

from typing import Final

Pair = tuple[tuple[str, str], tuple[str, str]]

PATHS: Final[dict[str, tuple[str, str]]] = {
    "compile": ("Compiled model", "编译模型"),
    "cuda_graphs": ("CUDA graphs", "CUDA 图"),
    "attention": ("Attention", "注意力"),
    "varlen_attention": ("Variable-length attention", "变长注意力"),
    "flash2": ("FlashAttention-2", "FlashAttention-2"),
    "flash3": ("FlashAttention-3", "FlashAttention-3"),
    "fused_adamw": ("Fused AdamW", "融合 AdamW"),
    "muon": ("Muon", "Muon"),
    "chunked_loss": ("Loss in parts", "分块损失"),
    "tf32": ("TF32", "TF32"),
    "precision": ("Mixed precision", "混合精度"),
    "transfer": ("Overlapped transfers", "与计算并行的传输"),
    "padded_vocabulary": ("Padded vocabulary", "词表补齐"),
    "activation_checkpointing": ("Activation checkpointing", "激活重计算"),
    "threads": ("Threads", "线程"),
}
"""Names of `protocol.FastPath` in English and Chinese."""

NOT_FOR_SPEED: Final = ("path.fewer_steps", "path.trades")
"""Reasons of paths that fit though they take longer."""

ENGINE: Final[dict[str, Pair]] = {
    "path.on": (("Equals the reference.", ""), ("可用，且与参考实现一致。", "")),
    "path.found": (("It is there.", ""), ("可用。", "")),
    "path.by_name": (("Set it to use it.", ""), ("在设置中选择后使用。", "")),
    "path.fewer_steps": (
        ("Its updates take longer, but fewer are needed: set it to use it.", ""),
        ("每次更新更慢，但所需步数更少；在设置中选择后使用。", ""),
    ),
    "path.trades": (
        ("It saves memory and takes time: set it to use it.", ""),
        ("节省内存或显存，但更慢；在设置中选择后使用。", ""),
    ),
    "path.all": (("All there are; fewer were not tried.", ""), ("使用全部，未试更少。", "")),
    "path.fastest": (("The fastest that equals the reference.", ""), ("与参考实现一致的方式中最快。", "")),
    "path.set": (("So set.", ""), ("按设置。", "")),
    "path.off": (("Turned off by the settings.", ""), ("已在设置中关闭。", "")),
    "path.recorded": (("As this run began with.", ""), ("与本次运行开始时相同。", "")),
    "path.no_gpu": (("For NVIDIA GPUs only.", ""), ("仅用于 NVIDIA 显卡。", "")),
    "path.no_compiler": (("No C++ compiler was found.", ""), ("未找到 C++ 编译器。", "")),
    "path.no_triton": (("Triton is not installed.", ""), ("未安装 Triton。", "")),
    "path.not_installed": (("{package} is not installed.", ""), ("未安装 {package}。", "")),
    "path.unsupported": (("Not supported: {what}.", ""), ("不支持：{what}。", "")),
    "path.differs": (
        ("It differs from the reference by {error}; {tolerance} is allowed.", ""),
        ("与参考实现相差 {error}，超过允许的 {tolerance}。", ""),
    ),
    "path.failed": (("It failed: {reason}.", ""), ("失败：{reason}。", "")),
    "path.slower": (("It is no faster here.", ""), ("在本机上并不更快。", "")),
    "path.quickest": (("The fastest of those tried.", ""), ("试过的几种中最快。", "")),
    "path.saves": (("It saves memory.", ""), ("节省内存或显存。", "")),
    "path.outdone": (("Another is faster.", ""), ("另有更快的方式。", "")),
    "path.not_tried": (("Not tried.", ""), ("未试。", "")),
    "path.masked": (("The fastest of those that can be compiled.", ""), ("可编译的方式中最快。", "")),
    "path.not_worth": (
        ("Too short a run: {cost} s to set up, about {saved} s saved.", ""),
        ("运行太短：准备需 {cost} 秒，约省 {saved} 秒。", ""),
    ),
    "path.not_needed": (("Nothing here needs it.", ""), ("此处不需要。", "")),
    "train.rolled_back": (
        ("Step {step} went wrong; training went back to step {to} and on past its batch.", ""),
        ("第 {step} 步出现异常；训练已退回第 {to} 步，并跳过该批数据。", ""),
    ),
}
"""Code: (what, do) in English and in Chinese."""
