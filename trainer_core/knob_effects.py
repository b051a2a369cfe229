"""What a knob does to memory and speed: marks of a direction, and one sentence in English and Chinese.

A mark says what a higher value does, or a switch that is on. `depends`: the sentence says on what. Memory is that of
the device that computes, unless the sentence says otherwise; speed is tokens a second. Knobs that touch neither, such
as the names of columns, have no entry. Imports `config` for what a knob is; no torch, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from trainer_core.config import Knob
from trainer_core.messages import Language

Memory = Literal["more", "less", "none", "depends"]
Speed = Literal["faster", "slower", "none", "depends"]


@dataclass(frozen=True, slots=True)
class Effect:
    """Of one knob."""

    memory: Memory
    speed: Speed
    english: str
    chinese: str

    def sentence(self, language: Language) -> str:
        return self.chinese if language == "zh" else self.english


# fmt: off
EFFECTS: Final[dict[str, Effect]] = {
    # --- data ---
    "validation_fraction": Effect("none", "none", "What is held back is not learned from; too little of it makes eval loss a guess.", "留出的部分不参与学习；留得太少，评估损失就不可靠。"),
    "tokenizer": Effect("none", "none", "A model's own tokenizer saves training one; its vocabulary decides how large the embedding is.", "沿用模型自带的分词器可省去训练；词嵌入的大小由它的词表决定。"),
    "vocab_size": Effect("more", "depends", "Embedding and logits grow with it; the same text becomes fewer tokens.", "词嵌入和 logits 随之变大；同样的文本会变成更少的词元。"),
    "pre_tokenizer": Effect("none", "none", "Decides how many tokens a text becomes, not how fast one is trained on.", "影响一段文本变成多少词元，不影响每个词元的训练速度。"),
    "tokenizer_sample_mib": Effect("more", "none", "More text takes more system memory and a longer preparation; training itself stays as it is.", "文本越多，准备数据时占用的系统内存越多、时间越长；训练本身不变。"),
    "token_cache": Effect("none", "faster", "Costs disk once; without it parquet files are encoded again in every epoch.", "需占用一次磁盘空间；关闭后每轮都要重新编码 parquet 文件。"),
    "packing": Effect("none", "faster", "Short samples leave little padding to compute: more of them are learned from in a step.", "短样本几乎不再需要填充，每一步能学到更多样本。"),
    "attend_across_documents": Effect("none", "faster", "Off, a mask keeps documents apart, which costs some speed.", "关闭后要用掩码隔开各文档，速度略降。"),

    # --- model ---
    "hidden_dim": Effect("more", "slower", "Parameters and arithmetic of each layer grow with its square.", "每层的参数量和计算量按宽度的平方增长。"),
    "n_layers": Effect("more", "slower", "Parameters, activations and time grow in proportion.", "参数、激活和耗时都按比例增长。"),
    "n_heads": Effect("none", "depends", "The arithmetic stays the same; heads of 64 to 128 wide are the fastest on a GPU.", "计算量不变；每个头宽 64 到 128 时在 GPU 上最快。"),
    "n_kv_heads": Effect("more", "slower", "Fewer than heads make key and value projections smaller, and generation lighter.", "少于注意力头数时，键值投影更小，生成文本也更省内存。"),
    "mlp_dim": Effect("more", "slower", "As a rule two thirds of a layer's parameters are here.", "通常一层三分之二的参数都在这里。"),
    "max_seq_len": Effect("more", "depends", "Activations grow in proportion and attention's time with the square; very short ones leave a GPU idle.", "激活按比例增长，注意力耗时按平方增长；太短则 GPU 会闲着。"),
    "rope_theta": Effect("none", "none", "Long sequences want a higher base.", "序列长时宜取更大的基数。"),
    "norm_eps": Effect("none", "none", "Only guards against dividing by zero.", "只用来避免除以零。"),
    "dropout": Effect("more", "slower", "Masks are kept for the backward pass, and CUDA graphs are off. Helps only where data is seen many times.", "反向计算要保存掩码，且不能用 CUDA 图；只有数据反复训练多轮时才有用。"),
    "qkv_bias": Effect("none", "none", "Adds a few parameters a layer.", "每层只多几个参数。"),
    "qk_norm": Effect("more", "slower", "Two small norms a layer; they keep attention steady at high learning rates.", "每层多两个小的归一化；学习率高时注意力更稳定。"),
    "tie_embeddings": Effect("less", "none", "Saves one matrix of vocabulary × width with its optimizer state.", "省去一个“词表 × 宽度”的矩阵及其优化器状态。"),
    "vocab_multiple": Effect("more", "faster", "A few unused rows, for sizes that suit the GPU's matrix units.", "多几行不用的参数，换来适合 GPU 矩阵单元的尺寸。"),

    # --- training ---
    "batch_size": Effect("more", "faster", "Activations grow in proportion; speed rises until the device is busy.", "激活按比例增长；在设备被占满之前，速度会提高。"),
    "gradient_accumulation_steps": Effect("none", "none", "A larger effective batch in the memory of one micro-batch; a step takes as many times longer.", "以一个微批的内存得到更大的有效批；每步耗时按倍数增加。"),
    "auto_batch": Effect("depends", "faster", "Takes some real steps before training, then the fastest batch size that leaves memory free.", "训练前实际运行若干步，再取仍有剩余内存的最快批大小。"),
    "max_epochs": Effect("none", "none", "Time grows in proportion; many passes over little data are learned by heart.", "总时间按比例增长；数据少而轮数多，模型会死记硬背。"),
    "max_steps": Effect("none", "none", "Time grows in proportion; the learning rate's schedule stretches with it.", "总时间按比例增长；学习率曲线随之拉长。"),
    "learning_rate": Effect("none", "none", "Too high and the loss jumps, too low and learning takes longer. Large models want less.", "太高损失会跳动，太低学得慢；模型越大，宜取得越小。"),
    "min_learning_rate_ratio": Effect("none", "none", "A low end gives the last bit of loss.", "末尾降得低，损失还能再降一点。"),
    "warmup_steps": Effect("none", "none", "Longer is safer at high learning rates.", "学习率高时，预热长一些更稳妥。"),
    "lr_schedule": Effect("none", "none", "Decides how well the end of a run learns, not how fast it computes.", "影响训练末尾的学习效果，不影响计算速度。"),
    "plateau_patience": Effect("none", "none", "Higher waits longer before the rate falls.", "越大，降低学习率之前等得越久。"),
    "plateau_factor": Effect("none", "none", "Lower makes each fall deeper.", "越小，每次降得越多。"),
    "optimizer": Effect("depends", "depends", "muon keeps one number for each weight of the layers where adamw keeps two, computes more in an update, and often needs fewer steps.", "层内每个权重 muon 只存一个数，adamw 存两个；muon 每次更新计算更多，但往往需要的步数更少。"),
    "muon_momentum": Effect("none", "none", "Short runs want a lower one.", "训练很短时宜取小一些。"),
    "weight_decay": Effect("none", "none", "Higher holds weights small, against learning by heart.", "越大，权重越小，可减轻死记硬背。"),
    "beta1": Effect("none", "none", "Higher averages gradients over more steps.", "越大，梯度平均的步数越多。"),
    "beta2": Effect("none", "none", "Higher averages gradient sizes over more steps; lower is steadier for small batches of text.", "越大，梯度幅度平均的步数越多；文本小批次训练取小些更稳。"),
    "adam_epsilon": Effect("none", "none", "Only guards against dividing by zero.", "只用来避免除以零。"),
    "grad_clip": Effect("none", "none", "Lower tames jumps of the loss; too low slows learning.", "越小越能压住损失的跳动；太小会学得慢。"),
    "on_bad_step": Effect("none", "none", "rollback computes the steps since the last good checkpoint again.", "rollback 会把最近完好检查点之后的步重新计算。"),
    "spike_factor": Effect("none", "none", "Lower leaves out more steps.", "越小，被略过的步越多。"),
    "bad_step_limit": Effect("none", "none", "Lower gives up earlier.", "越小，越早放弃。"),
    "seed": Effect("none", "none", "Another number is another run of the same kind.", "换一个数，就是同样设置的另一次训练。"),

    # --- hardware ---
    "device": Effect("depends", "depends", "A GPU is many times faster than the processor, as long as the model fits its VRAM.", "只要模型放得进显存，GPU 就比处理器快很多倍。"),
    "ranks": Effect("depends", "depends", "Each GPU holds the whole model and computes its part of the batch; the smaller the model, the less is gained.", "每块显卡都存放整个模型，各算批中的一部分；模型越小，提速越少。"),
    "mixed_precision": Effect("depends", "depends", "bf16 and fp16 take half the memory for activations and are several times faster on a GPU; “no” is fp32 throughout.", "bf16 和 fp16 的激活只占一半内存，在 GPU 上快好几倍；no 表示全程 fp32。"),
    "cpu_threads": Effect("none", "depends", "More than physical cores seldom helps; leave some for other programs.", "超过物理核心数很少有用；可给其他程序留几个。"),
    "deterministic": Effect("none", "slower", "The same results bit for bit; the fastest kernels are not used.", "结果逐位相同；不使用最快的内核。"),
    "compile": Effect("depends", "depends", "The compiler takes up to minutes at the start; after that steps are faster and often need less memory.", "开始时编译最长要几分钟；之后每步更快，内存往往也更少。"),
    "cuda_graphs": Effect("more", "faster", "Helps small models, where starting kernels takes longer than computing; holds some VRAM.", "小模型启动内核比计算还久，此时有用；会占用一些显存。"),
    "attention": Effect("depends", "depends", "All but math never hold the whole score matrix; math takes memory with the square of the sequence length.", "除 math 外都不保存整个注意力矩阵；math 的内存按序列长度的平方增长。"),
    "chunked_loss": Effect("less", "depends", "Saves the logits, which are the largest tensor where the vocabulary is large; about as fast.", "省去 logits，词表大时它是最大的张量；速度相近。"),
    "activation_checkpointing": Effect("less", "slower", "selective saves a part at little cost; full keeps almost nothing and computes the forward pass twice.", "selective 以很小代价省下一部分；full 几乎什么都不保留，前向要算两遍。"),
    "activation_memory_budget": Effect("more", "faster", "Below 1, the compiler computes again what costs it the least time.", "小于 1 时，编译器会重算代价最小的部分。"),
    "tf32": Effect("none", "faster", "Some digits fewer in matrix products that stay in fp32; needs an RTX 30 or newer.", "仍为 fp32 的矩阵乘法少几位精度；需要 RTX 30 或更新的显卡。"),
    "num_workers": Effect("more", "depends", "Takes system memory for each; helps only where reading the data holds training up.", "每个进程都占系统内存；只有读取数据拖慢训练时才有用。"),
    "prefetch_factor": Effect("more", "depends", "Takes system memory; evens out a slow disk.", "占用系统内存；可缓冲慢速磁盘。"),
    "pin_memory": Effect("more", "faster", "Some system memory that cannot be swapped out, for copies beside the computing.", "占用一些不能换出的系统内存，使复制与计算同时进行。"),
    "persistent_workers": Effect("more", "faster", "Loader processes keep their memory between epochs, and the next one begins at once.", "加载进程在各轮之间保留内存，下一轮立即开始。"),
    "low_memory": Effect("less", "slower", "Less system memory; training waits for data and for saves.", "系统内存占用更少；训练要等待数据和保存。"),
    "pause_between": Effect("depends", "none", "While it is paused, the GPU's memory is given back.", "暂停期间会让出显存。"),
    "pause_for_others": Effect("depends", "none", "While it is paused, the GPU's memory is given back.", "暂停期间会让出显存。"),
    "keep_awake": Effect("none", "none", "Off, a run stands still while the computer sleeps.", "关闭后，电脑睡眠时训练也会停住。"),

    # --- checkpoints ---
    "save_steps": Effect("none", "faster", "A crash costs at most so many steps, and those done while a checkpoint is written; each save holds training up for a moment.", "崩溃最多损失这么多步，以及写检查点期间的几步；每次保存会让训练停顿一下。"),
    "keep_last": Effect("none", "none", "Takes disk: a checkpoint is about three times the weights' size.", "占用磁盘：一个检查点约为权重的三倍大。"),
    "keep_best": Effect("none", "none", "Takes disk: a checkpoint is about three times the weights' size.", "占用磁盘：一个检查点约为权重的三倍大。"),
    "background_saving": Effect("more", "faster", "Takes system memory for a copy of weights and optimizer state.", "需要系统内存来存放权重和优化器状态的副本。"),
    "restarts": Effect("none", "none", "Each goes on from the last checkpoint.", "每次都从最近的检查点继续。"),

    # --- monitoring ---
    "log_steps": Effect("none", "none", "Higher makes smaller files and coarser plots.", "越大，文件越小，曲线越粗。"),
    "perf_steps": Effect("none", "faster", "The steps that are measured take a little longer.", "被测量的那些步会稍慢一点。"),
    "flops_steps": Effect("none", "faster", "The steps that are counted are slow.", "被统计的那些步较慢。"),
    "eval_steps": Effect("none", "faster", "Training waits while the loss is measured.", "计算评估损失时训练要等待。"),
    "eval_batches": Effect("none", "slower", "Training waits longer at each evaluation, which then is more exact.", "每次评估等待更久，结果也更准确。"),
    "eval_examples": Effect("none", "slower", "Answers are written token by token: many of them take long.", "回答要逐个词元生成，数量多时很慢。"),
    "eval_max_new_tokens": Effect("none", "slower", "A model that does not end its answers generates up to this limit for each prompt.", "模型不结束回答时，每个提示都会生成到此上限。"),
    "sample_steps": Effect("none", "faster", "Training waits while samples are written.", "生成示例时训练要等待。"),
    "sample_tokens": Effect("none", "slower", "Training waits longer for each sample.", "每段示例让训练等得更久。"),
    "hardware_interval_s": Effect("none", "none", "A look takes some milliseconds beside training.", "每次读取只需几毫秒，与训练同时进行。"),
}
# fmt: on

NEITHER: Final[dict[Language, str]] = {"en": "No effect on memory or speed.", "zh": "不影响内存和速度。"}
_WORDS: Final[dict[Language, dict[str, str]]] = {
    "en": {
        "int": "Higher", "float": "Higher", "bool": "On", "choice": "On", "more": "more memory", "less": "less memory",
        "faster": "faster", "slower": "slower", "none": "", "depends": "",
    },
    "zh": {
        "int": "调高", "float": "调高", "bool": "开启", "choice": "开启", "more": "占用更多内存",
        "less": "占用更少内存", "faster": "更快", "slower": "更慢", "none": "", "depends": "",
    },
}  # fmt: skip


def direction(knob: Knob, language: Language) -> str:
    """What a higher value, or a switch that is on, does: `Higher: more memory, slower.`; empty where it depends."""
    effect, table = EFFECTS.get(knob.name), _WORDS[language]
    if effect is None:
        return ""
    if effect.memory == effect.speed == "none":
        return NEITHER[language]
    said = [part for part in (table[effect.memory], table[effect.speed]) if part]
    if not said or knob.kind not in ("int", "float", "bool", "choice"):
        return ""
    return f"{table[knob.kind]}：{'、'.join(said)}。" if language == "zh" else f"{table[knob.kind]}: {', '.join(said)}."


def effect_words(knob: Knob, language: Language) -> str:
    """The direction and the sentence; empty for a knob that has no entry."""
    effect = EFFECTS.get(knob.name)
    if effect is None:
        return ""
    between = "" if language == "zh" else " "
    return between.join(filter(None, (direction(knob, language), effect.sentence(language))))
