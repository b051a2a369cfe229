<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="zh_CN">
<context>
    <name>About</name>
    <message>
        <source>About Traindeck</source>
        <translation>关于 Traindeck</translation>
    </message>
    <message>
        <source>Train a language model on your own machine.</source>
        <translation>在自己的电脑上训练语言模型。</translation>
    </message>
    <message>
        <source>Apache License 2.0. Nothing is sent anywhere unless you switch on Weights &amp; Biases.</source>
        <translation>Apache 许可证 2.0。除非您启用 Weights &amp; Biases，否则不会向任何地方发送数据。</translation>
    </message>
    <message>
        <source>User guide</source>
        <translation>使用指南</translation>
    </message>
    <message>
        <source>Licence</source>
        <translation>许可证</translation>
    </message>
    <message>
        <source>Copy versions</source>
        <translation>复制版本信息</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
</context>
<context>
    <name>AdvancedForm</name>
    <message>
        <source>Search all settings</source>
        <translation>搜索全部设置</translation>
    </message>
    <message>
        <source>Only changed</source>
        <translation>仅显示已修改</translation>
    </message>
    <message>
        <source>Reset all</source>
        <translation>全部还原</translation>
    </message>
    <message>
        <source>All settings back to those of the preset</source>
        <translation>把所有设置还原为预设的值</translation>
    </message>
    <message>
        <source>No setting matches.</source>
        <translation>没有符合的设置。</translation>
    </message>
    <message>
        <source>for the next run</source>
        <translation>用于下一次运行</translation>
    </message>
    <message>
        <source>{shown} of {all}</source>
        <translation>{shown} / {all}</translation>
    </message>
    <message>
        <source>{all} settings</source>
        <translation>共 {all} 项</translation>
    </message>
</context>
<context>
    <name>Allowed</name>
    <message>
        <source>a number above {low}</source>
        <translation>大于 {low} 的数</translation>
    </message>
    <message>
        <source>a number from {low} up</source>
        <translation>不小于 {low} 的数</translation>
    </message>
    <message>
        <source>a whole number</source>
        <translation>整数</translation>
    </message>
    <message>
        <source>a number</source>
        <translation>数字</translation>
    </message>
    <message>
        <source>a whole number from {low} to {high}</source>
        <translation>{low} 到 {high} 之间的整数</translation>
    </message>
    <message>
        <source>a number above {low} and below {high}</source>
        <translation>大于 {low} 且小于 {high} 的数</translation>
    </message>
    <message>
        <source>a number above {low}, at most {high}</source>
        <translation>大于 {low} 且不超过 {high} 的数</translation>
    </message>
    <message>
        <source>a number from {low}, below {high}</source>
        <translation>不小于 {low} 且小于 {high} 的数</translation>
    </message>
    <message>
        <source>a number from {low} to {high}</source>
        <translation>{low} 到 {high} 之间的数</translation>
    </message>
</context>
<context>
    <name>Blocked</name>
    <message>
        <source>There is no tokenizer where it is said to be</source>
        <translation>指定位置没有分词器</translation>
    </message>
    <message>
        <source>{setting} must be {range}</source>
        <translation>“{setting}”的取值应为：{range}</translation>
    </message>
    <message>
        <source>Choose a preset</source>
        <translation>请选择预设</translation>
    </message>
    <message>
        <source>Add a file or a folder to train on</source>
        <translation>请添加用于训练的文件或文件夹</translation>
    </message>
    <message>
        <source>There is already a run of this name</source>
        <translation>已有同名的运行</translation>
    </message>
</context>
<context>
    <name>BundleView</name>
    <message>
        <source>Bundle for a bug report</source>
        <translation>问题报告包</translation>
    </message>
    <message>
        <source>Collecting what explains a failure: versions, settings, the last events and logs.</source>
        <translation>正在收集用于说明故障的内容：版本、设置、最近的事件和日志。</translation>
    </message>
    <message>
        <source>Collecting</source>
        <translation>正在收集</translation>
    </message>
    <message>
        <source>What is in the bundle</source>
        <translation>报告包中的内容</translation>
    </message>
    <message>
        <source>Content</source>
        <translation>内容</translation>
    </message>
    <message>
        <source>Save as…</source>
        <translation>另存为…</translation>
    </message>
    <message>
        <source>Open folder</source>
        <translation>打开文件夹</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>This is what the bundle holds. Your name, keys, prompts and samples were taken out; file names are still there. Look through it, then save it and attach it to your report. Nothing is sent by itself.</source>
        <translation>以下是报告包的内容。您的姓名、密钥、提示和示例文本已被移除，文件名仍然保留。请查看后保存，并附在您的报告中。程序不会自动发送任何内容。</translation>
    </message>
    <message>
        <source>The bundle could not be made: {reason} Choose another place, or report without it.</source>
        <translation>无法生成报告包：{reason} 请另选位置，或不附报告包直接反馈。</translation>
    </message>
    <message>
        <source>Saved as {path}</source>
        <translation>已保存为 {path}</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
    <message>
        <source>Save the bundle</source>
        <translation>保存报告包</translation>
    </message>
    <message>
        <source>Zip files (*.zip)</source>
        <translation>Zip 文件 (*.zip)</translation>
    </message>
</context>
<context>
    <name>Chart</name>
    <message>
        <source>Menu of “{chart}”</source>
        <translation>“{chart}”的菜单</translation>
    </message>
    <message>
        <source>Copy, save or enlarge this plot</source>
        <translation>复制、保存或放大此图</translation>
    </message>
    <message>
        <source>Enlarge to the whole page</source>
        <translation>放大到整页</translation>
    </message>
    <message>
        <source>Show all plots again</source>
        <translation>恢复显示所有图</translation>
    </message>
    <message>
        <source>Copy picture</source>
        <translation>复制图片</translation>
    </message>
    <message>
        <source>Save as PNG…</source>
        <translation>保存为 PNG…</translation>
    </message>
    <message>
        <source>Copy data</source>
        <translation>复制数据</translation>
    </message>
    <message>
        <source>Save data as CSV…</source>
        <translation>将数据保存为 CSV…</translation>
    </message>
</context>
<context>
    <name>Check</name>
    <message>
        <source>Fits</source>
        <translation>放得下</translation>
    </message>
    <message>
        <source>Tight</source>
        <translation>勉强放得下</translation>
    </message>
    <message>
        <source>Does not fit</source>
        <translation>放不下</translation>
    </message>
    <message>
        <source>measured before</source>
        <translation>此前已测</translation>
    </message>
    <message>
        <source>measured in {seconds} s</source>
        <translation>测量用时 {seconds} 秒</translation>
    </message>
    <message>
        <source>batches of {size} × {times}</source>
        <translation>批 {size} × {times}</translation>
    </message>
    <message>
        <source>Peak RAM</source>
        <translation>内存峰值</translation>
    </message>
    <message>
        <source>Peak VRAM</source>
        <translation>显存峰值</translation>
    </message>
    <message>
        <source>Tokens per second</source>
        <translation>吞吐量（词元/秒）</translation>
    </message>
    <message>
        <source>Time to finish</source>
        <translation>预计用时</translation>
    </message>
    <message>
        <source>Disk needed</source>
        <translation>所需磁盘</translation>
    </message>
    <message>
        <source>{needed} of {free} free</source>
        <translation>{needed}（可用 {free}）</translation>
    </message>
    <message>
        <source>{free} of {total} are free. The trainer&apos;s own RAM: {ram}.</source>
        <translation>可用 {free}（共 {total}）。训练程序自身的内存：{ram}。</translation>
    </message>
    <message>
        <source>more than {free}</source>
        <translation>超过可用的 {free}</translation>
    </message>
    <message>
        <source>{count} tokens in each step, prompts counted too</source>
        <translation>每步 {count} 个词元，含提示</translation>
    </message>
    <message>
        <source>{steps} steps, without evaluations and checkpoints</source>
        <translation>共 {steps} 步，不含评估和保存检查点</translation>
    </message>
    <message>
        <source>{count} checkpoints of {size} each are kept</source>
        <translation>保留 {count} 个检查点，每个 {size}</translation>
    </message>
    <message>
        <source>{rate} tokens/s</source>
        <translation>{rate} 词元/秒</translation>
    </message>
</context>
<context>
    <name>CheckCard</name>
    <message>
        <source>The check did not succeed</source>
        <translation>检查未能完成</translation>
    </message>
    <message>
        <source>ending</source>
        <translation>正在结束</translation>
    </message>
    <message>
        <source>Check</source>
        <translation>检查</translation>
    </message>
    <message>
        <source>Applied</source>
        <translation>已应用</translation>
    </message>
    <message>
        <source>Apply</source>
        <translation>应用</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Dismiss</source>
        <translation>关闭提示</translation>
    </message>
    <message>
        <source>Progress</source>
        <translation>进度</translation>
    </message>
    <message>
        <source>Settings have changed since this was measured. Check again to see their effect.</source>
        <translation>测量之后设置已改变。请重新检查以了解其影响。</translation>
    </message>
    <message>
        <source>These fit with the same effective batch, measured on this machine:</source>
        <translation>以下设置放得下，等效批大小不变，均在本机测得：</translation>
    </message>
</context>
<context>
    <name>Checker</name>
    <message>
        <source>The check ended unexpectedly (code {code}). {words}</source>
        <translation>检查意外结束（代码 {code}）。{words}</translation>
    </message>
</context>
<context>
    <name>Checkpoint</name>
    <message>
        <source>regular</source>
        <translation>定期</translation>
    </message>
    <message>
        <source>best</source>
        <translation>最佳</translation>
    </message>
    <message>
        <source>final</source>
        <translation>最终</translation>
    </message>
    <message>
        <source>emergency</source>
        <translation>紧急</translation>
    </message>
</context>
<context>
    <name>Checkpoints</name>
    <message>
        <source>Resume from here</source>
        <translation>从此处继续</translation>
    </message>
    <message>
        <source>Generate from here</source>
        <translation>用此生成</translation>
    </message>
    <message>
        <source>Export…</source>
        <translation>导出…</translation>
    </message>
    <message>
        <source>Goes on training from this step. From an older one in a new run, so that nothing is overwritten.</source>
        <translation>从这一步继续训练。若是较早的检查点，则在新的运行中继续，不会覆盖任何内容。</translation>
    </message>
    <message>
        <source>Lets the model of this step write, on the page “Try it”.</source>
        <translation>在“试用”页让这一步的模型写作。</translation>
    </message>
    <message>
        <source>Writes this model into a folder that other programs load (Hugging Face).</source>
        <translation>将此模型写入其他程序可加载的文件夹（Hugging Face 格式）。</translation>
    </message>
    <message>
        <source>No checkpoints</source>
        <translation>没有检查点</translation>
    </message>
    <message>
        <source>Checkpoints</source>
        <translation>检查点</translation>
    </message>
    <message>
        <source>Step</source>
        <translation>步</translation>
    </message>
    <message>
        <source>Kind</source>
        <translation>类型</translation>
    </message>
    <message>
        <source>Eval loss</source>
        <translation>评估损失</translation>
    </message>
    <message>
        <source>Size</source>
        <translation>大小</translation>
    </message>
    <message>
        <source>Saved</source>
        <translation>保存时间</translation>
    </message>
</context>
<context>
    <name>Closing</name>
    <message>
        <source>Training is going on</source>
        <translation>正在训练</translation>
    </message>
    <message>
        <source>A run is being trained. What should happen to it?</source>
        <translation>有一次训练正在进行。要如何处理？</translation>
    </message>
    <message>
        <source>Keep training in the tray</source>
        <translation>在托盘中继续训练</translation>
    </message>
    <message>
        <source>Stop and save</source>
        <translation>停止并保存</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
</context>
<context>
    <name>Column</name>
    <message>
        <source>{name} (training)</source>
        <translation>{name}（训练中）</translation>
    </message>
    <message>
        <source>Loading the model…</source>
        <translation>正在加载模型…</translation>
    </message>
    <message>
        <source>Run</source>
        <translation>运行</translation>
    </message>
    <message>
        <source>Checkpoint</source>
        <translation>检查点</translation>
    </message>
    <message>
        <source>What the model wrote</source>
        <translation>模型生成的文本</translation>
    </message>
    <message>
        <source>Copy</source>
        <translation>复制</translation>
    </message>
    <message>
        <source>Copy the newest text</source>
        <translation>复制最新的文本</translation>
    </message>
</context>
<context>
    <name>Compared</name>
    <message>
        <source>Remove overlays</source>
        <translation>移除叠加</translation>
    </message>
    <message>
        <source>Show this run alone again</source>
        <translation>恢复只显示本次运行</translation>
    </message>
</context>
<context>
    <name>Comparison</name>
    <message>
        <source>Name</source>
        <translation>名称</translation>
    </message>
    <message>
        <source>Their settings are the same.</source>
        <translation>它们的设置相同。</translation>
    </message>
    <message>
        <source>Comparison of {count} runs</source>
        <translation>{count} 次运行的比较</translation>
    </message>
    <message>
        <source>Copy as table</source>
        <translation>复制为表格</translation>
    </message>
    <message>
        <source>Divided by tabs, to paste into a spreadsheet.</source>
        <translation>以制表符分隔，可粘贴到电子表格中。</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
    <message>
        <source>Where the runs differ</source>
        <translation>运行之间的差异</translation>
    </message>
    <message>
        <source>State</source>
        <translation>状态</translation>
    </message>
    <message>
        <source>Steps</source>
        <translation>步数</translation>
    </message>
    <message>
        <source>Best loss</source>
        <translation>最佳损失</translation>
    </message>
    <message>
        <source>Tokens/s</source>
        <translation>词元/秒</translation>
    </message>
    <message>
        <source>Trained for</source>
        <translation>训练时长</translation>
    </message>
</context>
<context>
    <name>Computing</name>
    <message>
        <source>, </source>
        <translation>、</translation>
    </message>
    <message>
        <source>Computes with: {paths}</source>
        <translation>计算方式：{paths}</translation>
    </message>
    <message>
        <source>compiling took {seconds} s</source>
        <translation>编译用时 {seconds} 秒</translation>
    </message>
    <message>
        <source>{name} ({choice}) {gain}</source>
        <translation>{name}（{choice}）{gain}</translation>
    </message>
    <message>
        <source>left out</source>
        <translation>已跳过</translation>
    </message>
    <message>
        <source>back to the last good checkpoint</source>
        <translation>已退回最近完好的检查点</translation>
    </message>
    <message>
        <source>training stopped</source>
        <translation>训练已停止</translation>
    </message>
</context>
<context>
    <name>Controls</name>
    <message>
        <source>Smoothing of the training loss: {weight}</source>
        <translation>训练损失的平滑系数：{weight}</translation>
    </message>
    <message>
        <source>Smoothing</source>
        <translation>平滑</translation>
    </message>
    <message>
        <source>Log scale</source>
        <translation>对数坐标</translation>
    </message>
    <message>
        <source>Of the loss</source>
        <translation>用于损失</translation>
    </message>
    <message>
        <source>Clip outliers</source>
        <translation>忽略离群点</translation>
    </message>
    <message>
        <source>Single spikes may leave the plot, so that they do not flatten the curve</source>
        <translation>个别尖峰可以超出图的范围，以免曲线被压平</translation>
    </message>
    <message>
        <source>Against</source>
        <translation>横轴</translation>
    </message>
    <message>
        <source>Horizontal axis</source>
        <translation>横轴</translation>
    </message>
    <message>
        <source>steps</source>
        <translation>步</translation>
    </message>
    <message>
        <source>tokens</source>
        <translation>词元</translation>
    </message>
    <message>
        <source>time</source>
        <translation>时间</translation>
    </message>
    <message>
        <source>Show all</source>
        <translation>显示全部</translation>
    </message>
    <message>
        <source>Drag to move, Ctrl and the wheel to zoom, double-click to show all again. In a plot with the focus: arrows read values, + and - zoom, Ctrl and arrows move, 0 shows all.</source>
        <translation>拖动可平移，按住 Ctrl 滚动滚轮可缩放，双击恢复显示全部。图获得焦点时：方向键读取数值，+ 和 - 缩放，Ctrl 加方向键平移，0 显示全部。</translation>
    </message>
</context>
<context>
    <name>Crash</name>
    <message>
        <source>Something in the window went wrong. A run that is on goes on.</source>
        <translation>窗口程序出现问题。正在进行的训练不受影响。</translation>
    </message>
    <message>
        <source>The details are in {log}</source>
        <translation>详细信息见 {log}</translation>
    </message>
</context>
<context>
    <name>Data</name>
    <message>
        <source>Python standard library (built in)</source>
        <translation>Python 标准库（内置）</translation>
    </message>
    <message>
        <source>Sums, dates and units, with answers (built in)</source>
        <translation>算术、日期与单位换算问答（内置）</translation>
    </message>
    <message>
        <source>{name} ({split})</source>
        <translation>{name}（{split}）</translation>
    </message>
</context>
<context>
    <name>DataFigures</name>
    <message>
        <source>Documents</source>
        <translation>文档</translation>
    </message>
    <message>
        <source>Tokens</source>
        <translation>词元</translation>
    </message>
    <message>
        <source>Samples per epoch</source>
        <translation>每轮样本</translation>
    </message>
    <message>
        <source>Steps per epoch</source>
        <translation>每轮步数</translation>
    </message>
    <message>
        <source>Steps in all</source>
        <translation>总步数</translation>
    </message>
    <message>
        <source>Of plain text, what is held back and each stretch in between counts as a document.</source>
        <translation>纯文本中，留出的各段及其间的每一段都算一篇文档。</translation>
    </message>
    <message>
        <source>all read</source>
        <translation>已全部读取</translation>
    </message>
    <message>
        <source>{count} read</source>
        <translation>已读 {count}</translation>
    </message>
    <message>
        <source>{count} characters each</source>
        <translation>每个 {count} 字符</translation>
    </message>
    <message>
        <source>{count} tokens at most</source>
        <translation>每个至多 {count} 词元</translation>
    </message>
    <message>
        <source>{count} full, one short</source>
        <translation>{count} 个整步，末步不满</translation>
    </message>
    <message>
        <source>{count} samples each</source>
        <translation>每步 {count} 个样本</translation>
    </message>
    <message>
        <source>one epoch</source>
        <translation>一轮</translation>
    </message>
    <message>
        <source>{count} epochs</source>
        <translation>{count} 轮</translation>
    </message>
    <message>
        <source>Longer than a sequence</source>
        <translation>超过序列长度</translation>
    </message>
    <message>
        <source>Tokens cut away</source>
        <translation>被截去的词元</translation>
    </message>
    <message>
        <source>Left out: no room for a response</source>
        <translation>舍弃：放不下回答</translation>
    </message>
    <message>
        <source>Tool messages left out</source>
        <translation>舍弃的工具消息</translation>
    </message>
    <message>
        <source>Tokens left over at the end</source>
        <translation>末尾剩余的词元</translation>
    </message>
    <message>
        <source>Packed into sequences</source>
        <translation>打包成的序列</translation>
    </message>
    <message>
        <source>Filled with tokens</source>
        <translation>词元填充率</translation>
    </message>
    <message>
        <source>{packed}, unpacked {alone}</source>
        <translation>{packed}，不打包为 {alone}</translation>
    </message>
    <message>
        <source>Validation rows also in training data</source>
        <translation>也在训练数据中的验证行</translation>
    </message>
    <message>
        <source>Duplicates</source>
        <translation>重复</translation>
    </message>
    <message>
        <source>Rows without text</source>
        <translation>没有文本的行</translation>
    </message>
    <message>
        <source>Rows that cannot be used</source>
        <translation>无法使用的行</translation>
    </message>
    <message>
        <source>Undecodable bytes</source>
        <translation>无法解码的字节</translation>
    </message>
    <message>
        <source>Characters</source>
        <translation>字符</translation>
    </message>
    <message>
        <source>Documents to train on</source>
        <translation>训练文档</translation>
    </message>
    <message>
        <source>Documents held back</source>
        <translation>验证文档</translation>
    </message>
    <message>
        <source>Tokens to train on</source>
        <translation>训练词元</translation>
    </message>
    <message>
        <source>Tokens held back</source>
        <translation>验证词元</translation>
    </message>
    <message>
        <source>Tokens per step</source>
        <translation>每步词元</translation>
    </message>
    <message>
        <source>Vocabulary</source>
        <translation>词表</translation>
    </message>
    <message>
        <source>text</source>
        <translation>文本</translation>
    </message>
    <message>
        <source>prompt</source>
        <translation>提示</translation>
    </message>
    <message>
        <source>response</source>
        <translation>回答</translation>
    </message>
    <message>
        <source>input</source>
        <translation>输入</translation>
    </message>
    <message>
        <source>system</source>
        <translation>系统</translation>
    </message>
    <message>
        <source>messages</source>
        <translation>对话</translation>
    </message>
    <message>
        <source>tools</source>
        <translation>工具</translation>
    </message>
    <message>
        <source>All of it was read, {size}: every figure is exact.</source>
        <translation>已读取全部 {size}，所有数字都是准确值。</translation>
    </message>
    <message>
        <source>All of it was read, {size}. A tokenizer yet to be trained may count tokens a little differently.</source>
        <translation>已读取全部 {size}。分词器若尚待训练，词元数届时可能略有出入。</translation>
    </message>
    <message>
        <source>{read} of {size} were read: figures with ≈ are estimates, the others are of that part.</source>
        <translation>已读取 {size} 中的 {read}：带 ≈ 的是估计值，其余是已读部分的数字。</translation>
    </message>
</context>
<context>
    <name>DataList</name>
    <message>
        <source>Drop files or folders here</source>
        <translation>将文件或文件夹拖到这里</translation>
    </message>
    <message>
        <source>Data to train on</source>
        <translation>训练数据</translation>
    </message>
    <message>
        <source>Add file…</source>
        <translation>添加文件…</translation>
    </message>
    <message>
        <source>Add folder…</source>
        <translation>添加文件夹…</translation>
    </message>
    <message>
        <source>Built-in and recent data</source>
        <translation>内置数据和最近使用的数据</translation>
    </message>
    <message>
        <source>Remove</source>
        <translation>移除</translation>
    </message>
    <message>
        <source>Look at it</source>
        <translation>查看内容</translation>
    </message>
    <message>
        <source>Read some of the data, and show what a model would learn from</source>
        <translation>读取一部分数据，显示模型将学习的内容</translation>
    </message>
    <message>
        <source>All files (*)</source>
        <translation>所有文件 (*)</translation>
    </message>
    <message>
        <source>Add files to train on</source>
        <translation>添加训练文件</translation>
    </message>
    <message>
        <source>Training data</source>
        <translation>训练数据</translation>
    </message>
    <message>
        <source>Add a folder to train on</source>
        <translation>添加训练文件夹</translation>
    </message>
</context>
<context>
    <name>DataLooker</name>
    <message>
        <source>Looking at the data ended unexpectedly (code {code}). {words}</source>
        <translation>查看数据时意外结束（代码 {code}）。{words}</translation>
    </message>
</context>
<context>
    <name>DataPage</name>
    <message>
        <source>ending</source>
        <translation>正在结束</translation>
    </message>
    <message>
        <source>starting to look</source>
        <translation>开始查看</translation>
    </message>
    <message>
        <source>The run on show trains on {documents} documents, {tokens} tokens: {steps} steps per epoch, {total} in all.</source>
        <translation>当前显示的运行使用 {documents} 篇文档、{tokens} 个词元训练：每轮 {steps} 步，共 {total} 步。</translation>
    </message>
    <message>
        <source>longest {count}</source>
        <translation>最长 {count}</translation>
    </message>
    <message>
        <source>sequence length {count}</source>
        <translation>序列长度 {count}</translation>
    </message>
    <message>
        <source>Look at the data</source>
        <translation>查看数据</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Progress</source>
        <translation>进度</translation>
    </message>
    <message>
        <source>Data or settings have changed since this was looked at. Look again to see their effect.</source>
        <translation>查看之后数据或设置已改变。请重新查看以了解其影响。</translation>
    </message>
    <message>
        <source>Look at the data before you train: what was found in it, how long its documents are, what is cut or left out, how many steps an epoch has, and the first samples as the model will get them.</source>
        <translation>训练前先查看数据：其中有什么、文档有多长、哪些会被截断或舍弃、每轮有多少步，以及模型将看到的前几个样本。</translation>
    </message>
    <message>
        <source>In figures</source>
        <translation>数据概况</translation>
    </message>
    <message>
        <source>Length of the documents in tokens</source>
        <translation>文档长度（词元）</translation>
    </message>
    <message>
        <source>No documents</source>
        <translation>没有文档</translation>
    </message>
</context>
<context>
    <name>DeleteQuestion</name>
    <message>
        <source>Delete runs</source>
        <translation>删除运行</translation>
    </message>
    <message>
        <source>Delete for good</source>
        <translation>永久删除</translation>
    </message>
    <message>
        <source>Move to the recycle bin</source>
        <translation>移到回收站</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>On disk: {size}</source>
        <translation>占用磁盘：{size}</translation>
    </message>
    <message>
        <source>Move this run with its checkpoints to the recycle bin?</source>
        <translation>将此运行及其检查点移到回收站？</translation>
    </message>
    <message>
        <source>Move {count} runs with their checkpoints to the recycle bin?</source>
        <translation>将 {count} 次运行及其检查点移到回收站？</translation>
    </message>
    <message>
        <source>The system could not move this run to its recycle bin. Delete it for good?</source>
        <translation>系统无法将此运行移到回收站。要永久删除吗？</translation>
    </message>
    <message>
        <source>The system could not move {count} runs to its recycle bin. Delete them for good?</source>
        <translation>系统无法将 {count} 次运行移到回收站。要永久删除吗？</translation>
    </message>
</context>
<context>
    <name>Details</name>
    <message>
        <source>{count} runs selected, {size} on disk</source>
        <translation>已选择 {count} 次运行，占用磁盘 {size}</translation>
    </message>
    <message>
        <source>“Compare” shows where their settings differ, “Show in plots” lays them over one another.</source>
        <translation>“比较”列出设置的不同之处，“在图中显示”把它们叠放在图表中。</translation>
    </message>
    <message>
        <source>Select a run to see its details, its checkpoints, and what was noted of it.</source>
        <translation>选择一次运行，以查看详情、检查点和备注。</translation>
    </message>
    <message>
        <source>State</source>
        <translation>状态</translation>
    </message>
    <message>
        <source>Started</source>
        <translation>开始时间</translation>
    </message>
    <message>
        <source>Progress</source>
        <translation>进度</translation>
    </message>
    <message>
        <source>Trained for</source>
        <translation>训练时长</translation>
    </message>
    <message>
        <source>Best loss</source>
        <translation>最佳损失</translation>
    </message>
    <message>
        <source>Last loss</source>
        <translation>最新损失</translation>
    </message>
    <message>
        <source>Tokens/s</source>
        <translation>词元/秒</translation>
    </message>
    <message>
        <source>On disk</source>
        <translation>占用磁盘</translation>
    </message>
    <message>
        <source>Data</source>
        <translation>数据</translation>
    </message>
    <message>
        <source>Tags</source>
        <translation>标签</translation>
    </message>
    <message>
        <source>Note</source>
        <translation>备注</translation>
    </message>
    <message>
        <source>divided by commas</source>
        <translation>用逗号分隔</translation>
    </message>
    <message>
        <source>What you want to remember of this run</source>
        <translation>关于此运行要记住的内容</translation>
    </message>
</context>
<context>
    <name>DropVeil</name>
    <message>
        <source>{names} and {count} more</source>
        <translation>{names} 等，另有 {count} 个</translation>
    </message>
    <message>
        <source>Drop to train on it</source>
        <translation>松开即可用作训练数据</translation>
    </message>
    <message>
        <source>Drop to use it as validation data</source>
        <translation>松开即作为验证数据</translation>
    </message>
</context>
<context>
    <name>Exporter</name>
    <message>
        <source>Exporting {name}: {share}</source>
        <translation>正在导出 {name}：{share}</translation>
    </message>
    <message>
        <source>Exported to {folder}</source>
        <translation>已导出到 {folder}</translation>
    </message>
    <message>
        <source>The export ended unexpectedly (code {code}). Nothing was written. {words}</source>
        <translation>导出意外结束（代码 {code}），未写入任何内容。{words}</translation>
    </message>
</context>
<context>
    <name>Figures</name>
    <message>
        <source>{days} d {clock}</source>
        <translation>{days} 天 {clock}</translation>
    </message>
    <message>
        <source>today {time}</source>
        <translation>今天 {time}</translation>
    </message>
    <message>
        <source>d MMM yyyy</source>
        <translation>yyyy/M/d</translation>
    </message>
</context>
<context>
    <name>Glance</name>
    <message>
        <source>Comes with Traindeck</source>
        <translation>随 Traindeck 提供</translation>
    </message>
    <message>
        <source>Looking…</source>
        <translation>正在查看…</translation>
    </message>
    <message>
        <source>Not found: {names}</source>
        <translation>未找到：{names}</translation>
    </message>
    <message>
        <source>No file in it that can be read</source>
        <translation>其中没有可读取的文件</translation>
    </message>
    <message>
        <source>The name does not tell the kind: {names}</source>
        <translation>无法由文件名判断类型：{names}</translation>
    </message>
    <message>
        <source>, </source>
        <translation>、</translation>
    </message>
    <message>
        <source>1 file</source>
        <translation>1 个文件</translation>
    </message>
    <message>
        <source>{count} files</source>
        <translation>{count} 个文件</translation>
    </message>
    <message>
        <source>Text</source>
        <translation>文本</translation>
    </message>
    <message>
        <source>Tar archive</source>
        <translation>Tar 归档</translation>
    </message>
</context>
<context>
    <name>Guide</name>
    <message>
        <source>Undo: {what}</source>
        <translation>撤销：{what}</translation>
    </message>
    <message>
        <source>Redo: {what}</source>
        <translation>重做：{what}</translation>
    </message>
    <message>
        <source>Undo</source>
        <translation>撤销</translation>
    </message>
    <message>
        <source>Redo</source>
        <translation>重做</translation>
    </message>
    <message>
        <source>preset</source>
        <translation>预设</translation>
    </message>
    <message>
        <source>data</source>
        <translation>数据</translation>
    </message>
    <message>
        <source>run name</source>
        <translation>运行名称</translation>
    </message>
    <message>
        <source>several settings</source>
        <translation>多项设置</translation>
    </message>
</context>
<context>
    <name>Helping</name>
    <message>
        <source>User guide</source>
        <translation>使用指南</translation>
    </message>
    <message>
        <source>Licence</source>
        <translation>许可证</translation>
    </message>
    <message>
        <source>System</source>
        <translation>系统</translation>
    </message>
</context>
<context>
    <name>InterruptedStrip</name>
    <message>
        <source>The run {name} was interrupted at step {step}, {when}.</source>
        <translation>运行 {name} 在第 {step} 步中断（{when}）。</translation>
    </message>
    <message>
        <source>Resume</source>
        <translation>继续</translation>
    </message>
    <message>
        <source>Dismiss</source>
        <translation>忽略</translation>
    </message>
</context>
<context>
    <name>KeptNotice</name>
    <message>
        <source>, </source>
        <translation>、</translation>
    </message>
    <message>
        <source>Kept your changes: {settings}</source>
        <translation>已保留修改：{settings}</translation>
    </message>
    <message>
        <source>Reset to the preset</source>
        <translation>还原为预设值</translation>
    </message>
    <message>
        <source>Dismiss</source>
        <translation>关闭提示</translation>
    </message>
</context>
<context>
    <name>KnobField</name>
    <message>
        <source>Reset to the preset&apos;s value</source>
        <translation>还原为预设的值</translation>
    </message>
    <message>
        <source>Reset to {value}</source>
        <translation>还原为 {value}</translation>
    </message>
    <message>
        <source>Allowed: {range}</source>
        <translation>允许的值：{range}</translation>
    </message>
    <message>
        <source>“{text}” is not a number.</source>
        <translation>“{text}”不是数字。</translation>
    </message>
    <message>
        <source>{text} is not a whole number.</source>
        <translation>{text} 不是整数。</translation>
    </message>
    <message>
        <source>Without separators: {number}.</source>
        <translation>请不要写分隔符：{number}。</translation>
    </message>
    <message>
        <source>{reason} {allowed}</source>
        <translation>{reason}{allowed}</translation>
    </message>
    <message>
        <source>There is no tokenizer.json here, nor a folder that holds one.</source>
        <translation>此处没有 tokenizer.json，也没有包含它的文件夹。</translation>
    </message>
    <message>
        <source>Only the number, without a unit.</source>
        <translation>只写数字，不写单位。</translation>
    </message>
    <message>
        <source>Only the number: it counts {unit}.</source>
        <translation>只写数字，单位已定为“{unit}”。</translation>
    </message>
</context>
<context>
    <name>Length</name>
    <message>
        <source>Ends after {steps} steps; the epochs are not used</source>
        <translation>训练 {steps} 步后结束，不看训练轮数</translation>
    </message>
    <message>
        <source>Ends after {steps} steps: {epochs} epochs</source>
        <translation>训练 {steps} 步后结束，即 {epochs} 轮</translation>
    </message>
    <message>
        <source>Ends after {steps} steps: about {epochs} epochs</source>
        <translation>训练 {steps} 步后结束，约 {epochs} 轮</translation>
    </message>
    <message>
        <source>Ends after {epochs} passes over the data</source>
        <translation>数据学完 {epochs} 遍后结束</translation>
    </message>
    <message>
        <source>Ends after one pass over the data</source>
        <translation>数据学完一遍后结束</translation>
    </message>
    <message>
        <source>Ends after {epochs} epochs: {steps} steps</source>
        <translation>训练 {epochs} 轮后结束，共 {steps} 步</translation>
    </message>
    <message>
        <source>Ends after one epoch: {steps} steps</source>
        <translation>训练一轮后结束，共 {steps} 步</translation>
    </message>
    <message>
        <source>Ends after {epochs} epochs: about {steps} steps</source>
        <translation>训练 {epochs} 轮后结束，约 {steps} 步</translation>
    </message>
    <message>
        <source>Ends after one epoch: about {steps} steps</source>
        <translation>训练一轮后结束，约 {steps} 步</translation>
    </message>
</context>
<context>
    <name>Log</name>
    <message>
        <source>Trainer started: {run_dir}, process {pid}, torch {torch}, {devices}</source>
        <translation>训练程序已启动：{run_dir}，进程 {pid}，torch {torch}，{devices}</translation>
    </message>
    <message>
        <source>resumed from step {step}</source>
        <translation>从第 {step} 步继续</translation>
    </message>
    <message>
        <source>Data ready: {train} tokens to train on, {held_out} held out; vocabulary {vocabulary}; {weights} weights</source>
        <translation>数据就绪：训练 {train} 词元，验证 {held_out} 词元；词表 {vocabulary}；模型 {weights} 个参数</translation>
    </message>
    <message>
        <source>Validation data: {names}</source>
        <translation>验证数据：{names}</translation>
    </message>
    <message>
        <source>Each evaluation uses the same {some} of {every} held-out sequences</source>
        <translation>每次评估使用相同的 {some} 个验证序列（共 {every} 个）</translation>
    </message>
    <message>
        <source>Packed into {sequences} sequences, {fill} full; without packing it would be {alone}</source>
        <translation>打包成 {sequences} 个序列，填充率 {fill}；不打包则为 {alone}</translation>
    </message>
    <message>
        <source>Batches come from {workers} processes</source>
        <translation>由 {workers} 个进程加载批次</translation>
    </message>
    <message>
        <source>A thread keeps {ahead} batches ready</source>
        <translation>一个线程预备 {ahead} 批</translation>
    </message>
    <message>
        <source>Batches are made when they are needed</source>
        <translation>批次在用到时生成</translation>
    </message>
    <message>
        <source>in page-locked memory</source>
        <translation>锁页内存</translation>
    </message>
    <message>
        <source>as set</source>
        <translation>按设置</translation>
    </message>
    <message>
        <source>to spare memory</source>
        <translation>节省内存</translation>
    </message>
    <message>
        <source>the CPU trains</source>
        <translation>由 CPU 训练</translation>
    </message>
    <message>
        <source>the data stays in memory</source>
        <translation>数据可留在内存中</translation>
    </message>
    <message>
        <source>the data is larger than half of the memory</source>
        <translation>数据超过内存的一半</translation>
    </message>
    <message>
        <source>Step {step} went wrong: gradient norm {norm}, usually {usual}</source>
        <translation>第 {step} 步异常：梯度范数 {norm}，通常为 {usual}</translation>
    </message>
    <message>
        <source>Step {step} went wrong: its gradient was not finite</source>
        <translation>第 {step} 步异常：梯度不是有限数</translation>
    </message>
    <message>
        <source>epoch {epoch}, samples {samples}</source>
        <translation>轮次 {epoch}，样本 {samples}</translation>
    </message>
    <message>
        <source>Step {step}: {total} for {tokens} positions of a micro-batch; the formula says {formula}</source>
        <translation>第 {step} 步：一个微批的 {tokens} 个位置共 {total}；公式为 {formula}</translation>
    </message>
    <message>
        <source>Data looked at: {documents} documents, {tokens} tokens to train on, {steps} steps per epoch</source>
        <translation>已查看数据：训练用 {documents} 篇文档、{tokens} 个词元，每轮 {steps} 步</translation>
    </message>
    <message>
        <source>Data looked at, {read} of {bytes}: about {documents} documents, {tokens} tokens to train on, {steps} steps per epoch</source>
        <translation>已查看数据（{bytes} 中的 {read}）：训练用约 {documents} 篇文档、{tokens} 个词元，每轮 {steps} 步</translation>
    </message>
    <message>
        <source>, </source>
        <translation>，</translation>
    </message>
    <message>
        <source>Now: {phase}</source>
        <translation>当前：{phase}</translation>
    </message>
    <message>
        <source>Checked: {verdict}; peak {peak} of {total}, {rate} tokens/s with a micro-batch of {batch}, {times} each</source>
        <translation>检查结果：{verdict}；峰值 {peak}（共 {total}），微批 {batch}、累积 {times} 时 {rate} 词元/秒</translation>
    </message>
    <message>
        <source>Memory again since step {step}: {done}</source>
        <translation>自第 {step} 步起内存恢复充足：{done}</translation>
    </message>
    <message>
        <source>Out of memory at step {step} ({during}): {done}; nothing was lost</source>
        <translation>第 {step} 步内存不足（{during}）：{done}；没有丢失任何内容</translation>
    </message>
    <message>
        <source>{requested} were asked for; {free} of {total} were free</source>
        <translation>申请 {requested}，当时可用 {free}（共 {total}）</translation>
    </message>
    <message>
        <source>activations are computed again instead of kept</source>
        <translation>激活值改为重新计算，不再保留</translation>
    </message>
    <message>
        <source>the loss is computed in parts</source>
        <translation>损失改为分块计算</translation>
    </message>
    <message>
        <source>micro-batch {batch}, accumulation {times}</source>
        <translation>微批 {batch}，累积 {times}</translation>
    </message>
    <message>
        <source>forward</source>
        <translation>前向</translation>
    </message>
    <message>
        <source>backward</source>
        <translation>反向</translation>
    </message>
    <message>
        <source>optimizer</source>
        <translation>优化器</translation>
    </message>
    <message>
        <source>evaluation</source>
        <translation>评估</translation>
    </message>
    <message>
        <source>No longer so: {advice}</source>
        <translation>已不再如此：{advice}</translation>
    </message>
    <message>
        <source>Step {step}: eval loss {loss}</source>
        <translation>第 {step} 步：评估损失 {loss}</translation>
    </message>
    <message>
        <source>mean over {tokens} tokens</source>
        <translation>{tokens} 个词元的平均值</translation>
    </message>
    <message>
        <source>exact match {share}</source>
        <translation>精确匹配 {share}</translation>
    </message>
    <message>
        <source>the best so far</source>
        <translation>目前最佳</translation>
    </message>
    <message>
        <source>answers cut: {limit} of {examples} by the answer limit, {context} by the sequence length</source>
        <translation>{examples} 个回答中，{limit} 个因回答上限、{context} 个因序列长度被截断</translation>
    </message>
    <message>
        <source>Step {step}: the model wrote, after “{prompt}”:</source>
        <translation>第 {step} 步：模型接着“{prompt}”写道：</translation>
    </message>
    <message>
        <source>Step {step}: checkpoint saved ({size} in {seconds} s)</source>
        <translation>第 {step} 步：已保存检查点（{size}，用时 {seconds} 秒）</translation>
    </message>
    <message>
        <source>The trainer did not take “{command}”: {reason}</source>
        <translation>训练程序未接受“{command}”：{reason}</translation>
    </message>
    <message>
        <source>Finished</source>
        <translation>已完成</translation>
    </message>
    <message>
        <source>Stopped</source>
        <translation>已停止</translation>
    </message>
    <message>
        <source>{ended} after {steps} steps: {time} spent training, {rate} tokens/s on average</source>
        <translation>{ended}：{steps} 步，训练用时 {time}，平均 {rate} 词元/秒</translation>
    </message>
    <message>
        <source>, eval loss {loss}</source>
        <translation>，评估损失 {loss}</translation>
    </message>
</context>
<context>
    <name>LogPage</name>
    <message>
        <source>Nothing matches the filter.</source>
        <translation>没有符合筛选条件的内容。</translation>
    </message>
    <message>
        <source>Nothing has happened yet.</source>
        <translation>还没有任何记录。</translation>
    </message>
    <message>
        <source>Events</source>
        <translation>事件</translation>
    </message>
    <message>
        <source>Warnings</source>
        <translation>警告</translation>
    </message>
    <message>
        <source>Errors</source>
        <translation>错误</translation>
    </message>
    <message>
        <source>Advice</source>
        <translation>建议</translation>
    </message>
    <message>
        <source>Output</source>
        <translation>输出</translation>
    </message>
    <message>
        <source>Search the log</source>
        <translation>搜索日志</translation>
    </message>
    <message>
        <source>Log</source>
        <translation>日志</translation>
    </message>
</context>
<context>
    <name>Looker</name>
    <message>
        <source>The trainer could not be started. Run the set-up again, then try once more.</source>
        <translation>无法启动训练程序。请重新运行安装程序，然后再试一次。</translation>
    </message>
</context>
<context>
    <name>MainWindow</name>
    <message>
        <source>Plots</source>
        <translation>图表</translation>
    </message>
    <message>
        <source>Performance</source>
        <translation>性能</translation>
    </message>
    <message>
        <source>Data</source>
        <translation>数据</translation>
    </message>
    <message>
        <source>Samples</source>
        <translation>示例文本</translation>
    </message>
    <message>
        <source>Try it</source>
        <translation>试用</translation>
    </message>
    <message>
        <source>Log</source>
        <translation>日志</translation>
    </message>
    <message>
        <source>Runs</source>
        <translation>运行记录</translation>
    </message>
    <message>
        <source>Width of the setup</source>
        <translation>设置栏宽度</translation>
    </message>
    <message>
        <source>Queue</source>
        <translation>队列</translation>
    </message>
    <message>
        <source>Queue ({count})</source>
        <translation>队列（{count}）</translation>
    </message>
    <message>
        <source>All settings</source>
        <translation>全部设置</translation>
    </message>
</context>
<context>
    <name>Menus</name>
    <message>
        <source>&amp;Run</source>
        <translation>运行(&amp;R)</translation>
    </message>
    <message>
        <source>&amp;View</source>
        <translation>视图(&amp;V)</translation>
    </message>
    <message>
        <source>&amp;Help</source>
        <translation>帮助(&amp;H)</translation>
    </message>
    <message>
        <source>&amp;Edit</source>
        <translation>编辑(&amp;E)</translation>
    </message>
    <message>
        <source>Copy command line</source>
        <translation>复制命令行</translation>
    </message>
    <message>
        <source>Language</source>
        <translation>语言</translation>
    </message>
    <message>
        <source>Theme</source>
        <translation>主题</translation>
    </message>
    <message>
        <source>Start</source>
        <translation>开始</translation>
    </message>
    <message>
        <source>Check</source>
        <translation>检查</translation>
    </message>
    <message>
        <source>Add to queue</source>
        <translation>加入队列</translation>
    </message>
    <message>
        <source>Sweep…</source>
        <translation>参数扫描…</translation>
    </message>
    <message>
        <source>Pause</source>
        <translation>暂停</translation>
    </message>
    <message>
        <source>Resume</source>
        <translation>继续</translation>
    </message>
    <message>
        <source>Stop</source>
        <translation>停止</translation>
    </message>
    <message>
        <source>Save a checkpoint now</source>
        <translation>立即保存检查点</translation>
    </message>
    <message>
        <source>Write a sample now</source>
        <translation>立即生成示例文本</translation>
    </message>
    <message>
        <source>Open the folder of this run</source>
        <translation>打开本次运行的文件夹</translation>
    </message>
    <message>
        <source>Open the runs folder</source>
        <translation>打开运行文件夹</translation>
    </message>
    <message>
        <source>Quit</source>
        <translation>退出</translation>
    </message>
    <message>
        <source>Undo</source>
        <translation>撤销</translation>
    </message>
    <message>
        <source>Redo</source>
        <translation>重做</translation>
    </message>
    <message>
        <source>Reset all settings</source>
        <translation>还原所有设置</translation>
    </message>
    <message>
        <source>Add files to the data…</source>
        <translation>添加数据文件…</translation>
    </message>
    <message>
        <source>Add a folder to the data…</source>
        <translation>添加数据文件夹…</translation>
    </message>
    <message>
        <source>Look at the data</source>
        <translation>查看数据</translation>
    </message>
    <message>
        <source>Switch the language</source>
        <translation>切换语言</translation>
    </message>
    <message>
        <source>Light</source>
        <translation>浅色</translation>
    </message>
    <message>
        <source>Dark</source>
        <translation>深色</translation>
    </message>
    <message>
        <source>As the system</source>
        <translation>跟随系统</translation>
    </message>
    <message>
        <source>Next theme</source>
        <translation>下一个主题</translation>
    </message>
    <message>
        <source>Search</source>
        <translation>搜索</translation>
    </message>
    <message>
        <source>Steps to a run</source>
        <translation>训练步骤条</translation>
    </message>
    <message>
        <source>Full screen</source>
        <translation>全屏</translation>
    </message>
    <message>
        <source>Notifications</source>
        <translation>通知</translation>
    </message>
    <message>
        <source>Welcome</source>
        <translation>欢迎页</translation>
    </message>
    <message>
        <source>User guide</source>
        <translation>使用指南</translation>
    </message>
    <message>
        <source>Keyboard shortcuts</source>
        <translation>键盘快捷键</translation>
    </message>
    <message>
        <source>Bundle for a bug report…</source>
        <translation>生成问题报告包…</translation>
    </message>
    <message>
        <source>About Traindeck</source>
        <translation>关于 Traindeck</translation>
    </message>
    <message>
        <source>For PowerShell</source>
        <translation>用于 PowerShell</translation>
    </message>
    <message>
        <source>For the command prompt (cmd)</source>
        <translation>用于命令提示符（cmd）</translation>
    </message>
    <message>
        <source>For a Unix shell</source>
        <translation>用于 Unix shell</translation>
    </message>
</context>
<context>
    <name>NoteRow</name>
    <message>
        <source>Details</source>
        <translation>详情</translation>
    </message>
    <message>
        <source>Applied</source>
        <translation>已应用</translation>
    </message>
    <message>
        <source>Apply at next start</source>
        <translation>下次开始时应用</translation>
    </message>
</context>
<context>
    <name>Notes</name>
    <message>
        <source>In the settings now, for the next start: {settings}</source>
        <translation>已写入设置，下次开始时生效：{settings}</translation>
    </message>
    <message>
        <source>Would mend it at the next start: {settings}</source>
        <translation>下次开始时可用以下设置改善：{settings}</translation>
    </message>
</context>
<context>
    <name>NotesStrip</name>
    <message>
        <source>Show fewer</source>
        <translation>收起</translation>
    </message>
    <message>
        <source>{count} more</source>
        <translation>还有 {count} 条</translation>
    </message>
</context>
<context>
    <name>Notifier</name>
    <message>
        <source>The run has finished: {steps} steps, loss {loss}.</source>
        <translation>训练已完成：共 {steps} 步，损失 {loss}。</translation>
    </message>
    <message>
        <source>The run has finished: {steps} steps.</source>
        <translation>训练已完成：共 {steps} 步。</translation>
    </message>
    <message>
        <source>The trainer ended unexpectedly.</source>
        <translation>训练程序意外终止。</translation>
    </message>
    <message>
        <source>The loss is not a number any more (step {step}).</source>
        <translation>损失已不再是有效数值（第 {step} 步）。</translation>
    </message>
    <message>
        <source>The queue waits: a run of it has failed.</source>
        <translation>队列已暂停：其中一次训练失败了。</translation>
    </message>
    <message>
        <source>The queue is done: nothing waits any more.</source>
        <translation>队列已完成，没有等待中的训练。</translation>
    </message>
</context>
<context>
    <name>PathStrip</name>
    <message>
        <source>{step}: {state}</source>
        <translation>{step}：{state}</translation>
    </message>
    <message>
        <source>A run is under way</source>
        <translation>运行正在进行</translation>
    </message>
    <message>
        <source>Next: add a file or a folder, or drop it here</source>
        <translation>下一步：添加文件或文件夹，也可拖到这里</translation>
    </message>
    <message>
        <source>Next: choose a preset</source>
        <translation>下一步：选择预设</translation>
    </message>
    <message>
        <source>Looking at the data…</source>
        <translation>正在查看数据……</translation>
    </message>
    <message>
        <source>Checking…</source>
        <translation>正在检查…</translation>
    </message>
    <message>
        <source>Trained. Next: Try it</source>
        <translation>训练完成。下一步：试用</translation>
    </message>
    <message>
        <source>Next: check that it fits, or start at once</source>
        <translation>下一步：检查能否运行，或直接开始</translation>
    </message>
    <message>
        <source>It fits. Next: Start</source>
        <translation>可以运行。下一步：开始</translation>
    </message>
    <message>
        <source>It fits, but tightly. Next: Start</source>
        <translation>勉强可以运行。下一步：开始</translation>
    </message>
    <message>
        <source>It does not fit: take an offer of the check</source>
        <translation>放不下：请采用检查给出的方案</translation>
    </message>
    <message>
        <source>Goes to the next step</source>
        <translation>转到下一步</translation>
    </message>
    <message>
        <source>Hide these steps</source>
        <translation>隐藏这些步骤</translation>
    </message>
    <message>
        <source>Data</source>
        <translation>数据</translation>
    </message>
    <message>
        <source>Preset</source>
        <translation>预设</translation>
    </message>
    <message>
        <source>Check</source>
        <translation>检查</translation>
    </message>
    <message>
        <source>Start</source>
        <translation>开始</translation>
    </message>
    <message>
        <source>done</source>
        <translation>已完成</translation>
    </message>
    <message>
        <source>next</source>
        <translation>下一步</translation>
    </message>
    <message>
        <source>not yet</source>
        <translation>未进行</translation>
    </message>
    <message>
        <source>to be put right</source>
        <translation>需要修改</translation>
    </message>
    <message>
        <source>under way</source>
        <translation>进行中</translation>
    </message>
</context>
<context>
    <name>Paths</name>
    <message>
        <source>How this run computes</source>
        <translation>本次运行的计算方式</translation>
    </message>
    <message>
        <source>Way</source>
        <translation>方式</translation>
    </message>
    <message>
        <source>Choice</source>
        <translation>选择</translation>
    </message>
    <message>
        <source>Gain</source>
        <translation>加速</translation>
    </message>
    <message>
        <source>Difference</source>
        <translation>误差</translation>
    </message>
    <message>
        <source>Why</source>
        <translation>原因</translation>
    </message>
    <message>
        <source>Times as fast as without, measured on this machine</source>
        <translation>在本机上测得的加速倍数</translation>
    </message>
    <message>
        <source>Largest relative difference from the reference</source>
        <translation>与参考实现的最大相对误差</translation>
    </message>
    <message>
        <source>, </source>
        <translation>、</translation>
    </message>
    <message>
        <source>in use</source>
        <translation>已使用</translation>
    </message>
    <message>
        <source>not in use</source>
        <translation>未使用</translation>
    </message>
    <message>
        <source>The trainer of this run did not tell how it computes.</source>
        <translation>此次运行的训练程序没有说明计算方式。</translation>
    </message>
    <message>
        <source>What this machine can do; what this run uses follows soon.</source>
        <translation>这是本机可用的方式；稍后显示本次运行实际使用的方式。</translation>
    </message>
</context>
<context>
    <name>Pause</name>
    <message>
        <source>by schedule, until {time}</source>
        <translation>按计划暂停，至 {time}</translation>
    </message>
    <message>
        <source>by schedule</source>
        <translation>按计划暂停</translation>
    </message>
    <message>
        <source>another program uses the GPU; training goes on when it is done</source>
        <translation>其他程序正在使用 GPU，待其结束后继续训练</translation>
    </message>
    <message>
        <source>the disk is full; training goes on when there is room</source>
        <translation>磁盘已满，有空间后继续训练</translation>
    </message>
</context>
<context>
    <name>Performance</name>
    <message>
        <source>One step</source>
        <translation>每步用时</translation>
    </message>
    <message>
        <source>Computing</source>
        <translation>计算占比</translation>
    </message>
    <message>
        <source>MFU</source>
        <translation>MFU</translation>
    </message>
    <message>
        <source>Peak VRAM</source>
        <translation>显存峰值</translation>
    </message>
    <message>
        <source>Gradient noise</source>
        <translation>梯度噪声</translation>
    </message>
    <message>
        <source>Energy</source>
        <translation>能耗</translation>
    </message>
    <message>
        <source>of a step&apos;s time</source>
        <translation>占每步时间</translation>
    </message>
    <message>
        <source>per million tokens</source>
        <translation>每百万词元</translation>
    </message>
    <message>
        <source>Batches beyond about {count} sequences gain little</source>
        <translation>批大小超过约 {count} 条序列后收益很小</translation>
    </message>
    <message>
        <source>waits for data {share}</source>
        <translation>等待数据 {share}</translation>
    </message>
    <message>
        <source>{size} reserved</source>
        <translation>已预留 {size}</translation>
    </message>
    <message>
        <source>of {peak}</source>
        <translation>峰值 {peak}</translation>
    </message>
    <message>
        <source>Forward, backward and optimizer; the rest is data, transfer, saving and the like</source>
        <translation>前向、反向与优化器；其余为数据、传输、保存等</translation>
    </message>
    <message>
        <source>Taken by the GPU, as the driver tells it; with evaluations and saving, without pauses</source>
        <translation>由驱动报告的 GPU 用电量；含评估与保存，不含暂停</translation>
    </message>
    <message>
        <source>this GPU&apos;s peak is not known</source>
        <translation>此 GPU 的峰值未知</translation>
    </message>
    <message>
        <source>Model FLOPs utilisation is not known: no peak is listed for {name}</source>
        <translation>模型 FLOPs 利用率未知：没有 {name} 的峰值数据</translation>
    </message>
    <message>
        <source>Model FLOPs utilisation: {flops} a token (6 a weight, and causal attention), against the peak of {name}, {peak}</source>
        <translation>模型 FLOPs 利用率：每词元 {flops}（每权重 6，另加因果注意力），相对于 {name} 的峰值 {peak}</translation>
    </message>
    <message>
        <source>a step has {count}</source>
        <translation>每步有 {count} 条</translation>
    </message>
    <message>
        <source>sequences</source>
        <translation>条序列</translation>
    </message>
    <message>
        <source>Forward</source>
        <translation>前向</translation>
    </message>
    <message>
        <source>Backward</source>
        <translation>反向</translation>
    </message>
    <message>
        <source>Adding up gradients</source>
        <translation>梯度汇总</translation>
    </message>
    <message>
        <source>Optimizer</source>
        <translation>优化器</translation>
    </message>
    <message>
        <source>Transfer</source>
        <translation>传输</translation>
    </message>
    <message>
        <source>Waiting for data</source>
        <translation>等待数据</translation>
    </message>
    <message>
        <source>Checkpoint</source>
        <translation>检查点</translation>
    </message>
    <message>
        <source>Other</source>
        <translation>其他</translation>
    </message>
    <message>
        <source>Step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>Held by tensors</source>
        <translation>张量占用</translation>
    </message>
    <message>
        <source>Arithmetic per token</source>
        <translation>每词元计算量</translation>
    </message>
    <message>
        <source>Loss scale (fp16)</source>
        <translation>损失缩放（fp16）</translation>
    </message>
    <message>
        <source>{scale}, {count} overflows</source>
        <translation>{scale}，溢出 {count} 次</translation>
    </message>
    <message>
        <source>{count}, the last at step {step}: {action}</source>
        <translation>{count} 个，最近为第 {step} 步：{action}</translation>
    </message>
    <message>
        <source>Bad steps</source>
        <translation>异常步</translation>
    </message>
</context>
<context>
    <name>PerformancePage</name>
    <message>
        <source>Start a run, or open one, to see how it computes: the fast paths in use and why, where the time of a step goes, and how well the machine is used.</source>
        <translation>开始或打开一次运行，即可看到它的计算方式：用了哪些加速途径及其原因，每步的时间花在哪里，以及机器的利用情况。</translation>
    </message>
</context>
<context>
    <name>Phase</name>
    <message>
        <source>preparing the data</source>
        <translation>正在准备数据</translation>
    </message>
    <message>
        <source>checking</source>
        <translation>正在检查</translation>
    </message>
    <message>
        <source>finding the fastest way to compute</source>
        <translation>寻找最快的计算方式</translation>
    </message>
    <message>
        <source>training</source>
        <translation>正在训练</translation>
    </message>
    <message>
        <source>evaluating</source>
        <translation>正在评估</translation>
    </message>
    <message>
        <source>saving a checkpoint</source>
        <translation>正在保存检查点</translation>
    </message>
    <message>
        <source>paused</source>
        <translation>已暂停</translation>
    </message>
    <message>
        <source>stopping</source>
        <translation>正在停止</translation>
    </message>
    <message>
        <source>done</source>
        <translation>已完成</translation>
    </message>
    <message>
        <source>failed</source>
        <translation>已失败</translation>
    </message>
</context>
<context>
    <name>PlotSaver</name>
    <message>
        <source>Picture (*.png)</source>
        <translation>图片 (*.png)</translation>
    </message>
    <message>
        <source>Table (*.csv)</source>
        <translation>表格 (*.csv)</translation>
    </message>
    <message>
        <source>Save plot</source>
        <translation>保存图表</translation>
    </message>
    <message>
        <source>Folder for the plots</source>
        <translation>保存图表的文件夹</translation>
    </message>
    <message>
        <source>Saved: {path}</source>
        <translation>已保存：{path}</translation>
    </message>
    <message>
        <source>{path} could not be saved: {reason}. Choose another name or folder.</source>
        <translation>无法保存 {path}：{reason}。请换一个名称或文件夹。</translation>
    </message>
</context>
<context>
    <name>Plots</name>
    <message>
        <source>VRAM of GPU {index} (GiB)</source>
        <translation>GPU {index} 的显存（GiB）</translation>
    </message>
    <message>
        <source>Loss</source>
        <translation>损失</translation>
    </message>
    <message>
        <source>Tokens per second</source>
        <translation>吞吐量（词元/秒）</translation>
    </message>
    <message>
        <source>VRAM (GiB)</source>
        <translation>显存（GiB）</translation>
    </message>
    <message>
        <source>Trainer&apos;s memory (GiB)</source>
        <translation>训练进程内存（GiB）</translation>
    </message>
    <message>
        <source>Learning rate</source>
        <translation>学习率</translation>
    </message>
    <message>
        <source>Gradient norm</source>
        <translation>梯度范数</translation>
    </message>
    <message>
        <source>Time of a step (ms)</source>
        <translation>每步时间（毫秒）</translation>
    </message>
    <message>
        <source>MFU (%)</source>
        <translation>MFU（%）</translation>
    </message>
    <message>
        <source>GPU utilisation (%)</source>
        <translation>GPU 利用率（%）</translation>
    </message>
    <message>
        <source>Power (W)</source>
        <translation>功率（W）</translation>
    </message>
    <message>
        <source>Temperature (°C)</source>
        <translation>温度（°C）</translation>
    </message>
    <message>
        <source>Clock (MHz)</source>
        <translation>频率（MHz）</translation>
    </message>
    <message>
        <source>CPU use (%)</source>
        <translation>CPU 占用（%）</translation>
    </message>
    <message>
        <source>Memory of this machine (GiB)</source>
        <translation>本机内存（GiB）</translation>
    </message>
    <message>
        <source>this run</source>
        <translation>本次运行</translation>
    </message>
    <message>
        <source>Data</source>
        <translation>数据</translation>
    </message>
    <message>
        <source>Adding up</source>
        <translation>汇总</translation>
    </message>
    <message>
        <source>train</source>
        <translation>训练</translation>
    </message>
    <message>
        <source>eval</source>
        <translation>评估</translation>
    </message>
    <message>
        <source>total</source>
        <translation>总量</translation>
    </message>
    <message>
        <source>GPU {index}</source>
        <translation>GPU {index}</translation>
    </message>
    <message>
        <source>limit</source>
        <translation>上限</translation>
    </message>
    <message>
        <source>used</source>
        <translation>已用</translation>
    </message>
    <message>
        <source>reserved</source>
        <translation>已预留</translation>
    </message>
    <message>
        <source>allocated</source>
        <translation>已分配</translation>
    </message>
    <message>
        <source>spill</source>
        <translation>溢出</translation>
    </message>
    <message>
        <source>trainer</source>
        <translation>训练进程</translation>
    </message>
    <message>
        <source>all programs</source>
        <translation>所有程序</translation>
    </message>
    <message>
        <source>slowed by heat</source>
        <translation>因过热降频</translation>
    </message>
    <message>
        <source>heat</source>
        <translation>过热</translation>
    </message>
    <message>
        <source>best eval</source>
        <translation>最佳评估</translation>
    </message>
    <message>
        <source>checkpoint</source>
        <translation>检查点</translation>
    </message>
    <message>
        <source>bad step</source>
        <translation>异常步</translation>
    </message>
    <message>
        <source>memory made to fit</source>
        <translation>显存调整</translation>
    </message>
    <message>
        <source>resumed</source>
        <translation>继续训练</translation>
    </message>
    <message>
        <source>step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>{count} tokens</source>
        <translation>{count} 词元</translation>
    </message>
    <message>
        <source>{curve}, smoothed {weight}</source>
        <translation>{curve}，平滑 {weight}</translation>
    </message>
</context>
<context>
    <name>PlotsPage</name>
    <message>
        <source>Save all plots as PNG…</source>
        <translation>将所有图保存为 PNG…</translation>
    </message>
    <message>
        <source>Save all data as CSV…</source>
        <translation>将所有数据保存为 CSV…</translation>
    </message>
    <message>
        <source>No data yet</source>
        <translation>暂无数据</translation>
    </message>
    <message>
        <source>Overview</source>
        <translation>概览</translation>
    </message>
    <message>
        <source>Detail</source>
        <translation>明细</translation>
    </message>
    <message>
        <source>Also the time of a step, GPUs, CPU and memory</source>
        <translation>另含每步时间、GPU、CPU 和内存</translation>
    </message>
    <message>
        <source>Menu of all plots</source>
        <translation>所有图表的菜单</translation>
    </message>
    <message>
        <source>Save all plots</source>
        <translation>保存所有图表</translation>
    </message>
    <message>
        <source>No data yet. Choose a preset and data at the left, then press Start.</source>
        <translation>暂无数据。在左侧选择预设和数据，然后点击“开始”。</translation>
    </message>
    <message>
        <source>Details</source>
        <translation>详情</translation>
    </message>
</context>
<context>
    <name>PresetChooser</name>
    <message>
        <source>Fits: {hardware}</source>
        <translation>适合：{hardware}</translation>
    </message>
    <message>
        <source>{size} of memory</source>
        <translation>内存 {size}</translation>
    </message>
    <message>
        <source>no NVIDIA GPU</source>
        <translation>没有 NVIDIA 显卡</translation>
    </message>
    <message>
        <source>{count} CPU cores</source>
        <translation>{count} 个 CPU 核心</translation>
    </message>
    <message>
        <source>1 CPU core</source>
        <translation>1 个 CPU 核心</translation>
    </message>
    <message>
        <source>This machine: {parts}</source>
        <translation>本机：{parts}</translation>
    </message>
    <message>
        <source>, </source>
        <translation>，</translation>
    </message>
    <message>
        <source>Preset</source>
        <translation>预设</translation>
    </message>
</context>
<context>
    <name>Profile</name>
    <message>
        <source>Arithmetic of a micro-batch</source>
        <translation>一个微批的计算量</translation>
    </message>
    <message>
        <source>step {step}: {total}; the formula says {formula}</source>
        <translation>第 {step} 步：{total}；公式为 {formula}</translation>
    </message>
</context>
<context>
    <name>QAbstractFileIconProvider</name>
    <message>
        <source>Folder</source>
        <translation>文件夹</translation>
    </message>
</context>
<context>
    <name>QFileDialog</name>
    <message>
        <source>&amp;Look in:</source>
        <translation>查找范围(&amp;L)：</translation>
    </message>
    <message>
        <source>Files of &amp;type:</source>
        <translation>文件类型(&amp;T)：</translation>
    </message>
</context>
<context>
    <name>QFileSystemModel</name>
    <message>
        <source>Size</source>
        <translation>大小</translation>
    </message>
</context>
<context>
    <name>Queue</name>
    <message>
        <source>Waiting</source>
        <translation>等待中</translation>
    </message>
    <message>
        <source>Restarting</source>
        <translation>正在重启</translation>
    </message>
    <message>
        <source>{time} left</source>
        <translation>剩余 {time}</translation>
    </message>
    <message>
        <source>best loss {loss}</source>
        <translation>最佳损失 {loss}</translation>
    </message>
    <message>
        <source>step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>The trainer ended unexpectedly (code {code}).</source>
        <translation>训练器意外结束（代码 {code}）。</translation>
    </message>
    <message>
        <source>Broken off at step {step}, when the program ended. Resume goes on from its last checkpoint.</source>
        <translation>程序结束时在第 {step} 步中断。可从最后一个检查点继续。</translation>
    </message>
    <message>
        <source>Broken off when the program ended, before its first checkpoint. Put it back in line.</source>
        <translation>程序结束时中断，当时还没有检查点。可重新排队。</translation>
    </message>
    <message>
        <source>Settings: {settings}</source>
        <translation>设置：{settings}</translation>
    </message>
    <message>
        <source>Data: {data}</source>
        <translation>数据：{data}</translation>
    </message>
    <message>
        <source>Added: {when}</source>
        <translation>加入：{when}</translation>
    </message>
    <message>
        <source>Started: {when}</source>
        <translation>开始：{when}</translation>
    </message>
    <message>
        <source>Ended: {when}</source>
        <translation>结束：{when}</translation>
    </message>
</context>
<context>
    <name>QueuePage</name>
    <message>
        <source>Wait</source>
        <translation>暂缓</translation>
    </message>
    <message>
        <source>Go on</source>
        <translation>继续队列</translation>
    </message>
    <message>
        <source>Another window of Traindeck has the queue (process {pid}). Close it to use the queue here.</source>
        <translation>队列正由另一个 Traindeck 窗口使用（进程 {pid}）。关闭它后即可在此使用队列。</translation>
    </message>
    <message>
        <source>Some of the queue&apos;s file could not be read; the whole file was kept: {path}</source>
        <translation>队列文件有一部分无法读取，原文件完整保留在：{path}</translation>
    </message>
    <message>
        <source>Nothing waits.</source>
        <translation>没有等待中的运行。</translation>
    </message>
    <message>
        <source>The queue waits: nothing starts by itself when the program opens.</source>
        <translation>队列在等待：程序打开时不会自动开始任何运行。</translation>
    </message>
    <message>
        <source>The queue waits, for a run was stopped.</source>
        <translation>有运行被停止，队列在等待。</translation>
    </message>
    <message>
        <source>The queue waits, for a run failed.</source>
        <translation>有运行失败，队列在等待。</translation>
    </message>
    <message>
        <source>“{name}” starts when this run ends.</source>
        <translation>当前运行结束后开始“{name}”。</translation>
    </message>
    <message>
        <source>“{name}” starts now.</source>
        <translation>“{name}”即将开始。</translation>
    </message>
    <message>
        <source>The queue waits. Go on starts “{name}”.</source>
        <translation>队列在等待。按“继续队列”开始“{name}”。</translation>
    </message>
    <message>
        <source>Open</source>
        <translation>打开</translation>
    </message>
    <message>
        <source>Resume from its last checkpoint</source>
        <translation>从最后一个检查点继续</translation>
    </message>
    <message>
        <source>Put back in line</source>
        <translation>重新排队</translation>
    </message>
    <message>
        <source>Move up</source>
        <translation>上移</translation>
    </message>
    <message>
        <source>Move down</source>
        <translation>下移</translation>
    </message>
    <message>
        <source>Duplicate</source>
        <translation>复制</translation>
    </message>
    <message>
        <source>Take its settings into the form</source>
        <translation>把它的设置填入表单</translation>
    </message>
    <message>
        <source>Remove</source>
        <translation>移除</translation>
    </message>
    <message>
        <source>Undo removing</source>
        <translation>撤销移除</translation>
    </message>
    <message>
        <source>Clear finished</source>
        <translation>清除已完成的</translation>
    </message>
    <message>
        <source>More</source>
        <translation>更多</translation>
    </message>
    <message>
        <source>Add to queue</source>
        <translation>加入队列</translation>
    </message>
    <message>
        <source>Sweep…</source>
        <translation>参数扫描…</translation>
    </message>
    <message>
        <source>Compare all</source>
        <translation>全部比较</translation>
    </message>
    <message>
        <source>Lay the runs of the queue over the plots, the ten best at most; of several chosen ones, these</source>
        <translation>把队列里的运行叠加到图表上，最多十个最好的；选中多个时只显示选中的</translation>
    </message>
    <message>
        <source>Runs in line, trained one after the other, overnight for example.

Set up a run at the left and press “Add to queue”, also while another one trains; or let “Sweep…” line up the same run with several values of a setting. The next starts when the one before it has ended.</source>
        <translation>把多个运行排成一队，逐个训练，例如让它们跑一整夜。

在左侧设置好一个运行，然后按“加入队列”，正在训练时也可以；或用“参数扫描…”以某项设置的多个取值排入同一个运行。前一个结束后，下一个自动开始。</translation>
    </message>
    <message>
        <source>After a failure:</source>
        <translation>失败之后：</translation>
    </message>
    <message>
        <source>go on with the next</source>
        <translation>继续下一个</translation>
    </message>
    <message>
        <source>wait</source>
        <translation>等待</translation>
    </message>
</context>
<context>
    <name>QueueTable</name>
    <message>
        <source>Queue</source>
        <translation>队列</translation>
    </message>
    <message>
        <source>Name</source>
        <translation>名称</translation>
    </message>
    <message>
        <source>State</source>
        <translation>状态</translation>
    </message>
    <message>
        <source>Settings</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>Data</source>
        <translation>数据</translation>
    </message>
    <message>
        <source>Progress and result</source>
        <translation>进度与结果</translation>
    </message>
</context>
<context>
    <name>Queueing</name>
    <message>
        <source>Not added to the queue: {reason}</source>
        <translation>未加入队列：{reason}</translation>
    </message>
    <message>
        <source>“{name}” is in the queue. Waiting: {count}.</source>
        <translation>“{name}”已加入队列，等待中：{count}。</translation>
    </message>
</context>
<context>
    <name>RestartStrip</name>
    <message>
        <source>Restarting in {seconds} s ({attempt} of {of}) from step {step}: {reason}</source>
        <translation>{seconds} 秒后自动重启（第 {attempt} 次，共 {of} 次），从第 {step} 步继续：{reason}</translation>
    </message>
    <message>
        <source>Now</source>
        <translation>立即重启</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
</context>
<context>
    <name>RunBar</name>
    <message>
        <source>End now</source>
        <translation>强制结束</translation>
    </message>
    <message>
        <source>Stop</source>
        <translation>停止</translation>
    </message>
    <message>
        <source>Start is not possible yet: {reason}</source>
        <translation>暂时无法开始：{reason}</translation>
    </message>
    <message>
        <source>Add to queue: train this when the runs before it have ended</source>
        <translation>加入队列：排在前面的运行结束后训练它</translation>
    </message>
    <message>
        <source>ending the trainer</source>
        <translation>正在结束训练程序</translation>
    </message>
    <message>
        <source>waiting for the trainer</source>
        <translation>正在等待训练程序</translation>
    </message>
    <message>
        <source>{doing}, at most {seconds} s, then it is ended</source>
        <translation>{doing}，最多等待 {seconds} 秒，之后强制结束</translation>
    </message>
    <message>
        <source>step {step} of {total}</source>
        <translation>第 {step} 步，共 {total} 步</translation>
    </message>
    <message>
        <source>step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>epoch {epoch}</source>
        <translation>第 {epoch} 轮</translation>
    </message>
    <message>
        <source>pausing after this step</source>
        <translation>本步完成后暂停</translation>
    </message>
    <message>
        <source>finishing this step</source>
        <translation>正在完成这一步</translation>
    </message>
    <message>
        <source>elapsed {time}</source>
        <translation>已用 {time}</translation>
    </message>
    <message>
        <source>about {time} left</source>
        <translation>约剩 {time}</translation>
    </message>
    <message>
        <source>Check</source>
        <translation>检查</translation>
    </message>
    <message>
        <source>Take real steps of these settings: do they fit, how fast, how long, what disk?</source>
        <translation>用这些设置实际训练几步：能否放得下、有多快、要多久、需要多少磁盘？</translation>
    </message>
    <message>
        <source>Start</source>
        <translation>开始</translation>
    </message>
    <message>
        <source>Add to queue</source>
        <translation>加入队列</translation>
    </message>
    <message>
        <source>Pause</source>
        <translation>暂停</translation>
    </message>
    <message>
        <source>Resume</source>
        <translation>继续</translation>
    </message>
    <message>
        <source>Show me where</source>
        <translation>带我去看</translation>
    </message>
    <message>
        <source>Progress</source>
        <translation>进度</translation>
    </message>
</context>
<context>
    <name>RunName</name>
    <message>
        <source>A run needs a name.</source>
        <translation>运行需要一个名称。</translation>
    </message>
    <message>
        <source>“{name}” cannot be a folder&apos;s name on Windows: leave out &lt; &gt; : &quot; / \ | ? * and names such as CON.</source>
        <translation>“{name}”在 Windows 上不能用作文件夹名称：请勿使用 &lt; &gt; : &quot; / \ | ? * 以及 CON 之类的名称。</translation>
    </message>
    <message>
        <source>There is a run or a folder called “{name}” already.</source>
        <translation>已有名为“{name}”的运行或文件夹。</translation>
    </message>
    <message>
        <source>This run is being trained. Stop it, then rename it.</source>
        <translation>此运行正在训练。请先停止，再重命名。</translation>
    </message>
    <message>
        <source>This run is not there any more.</source>
        <translation>此运行已不存在。</translation>
    </message>
</context>
<context>
    <name>RunsKeeper</name>
    <message>
        <source>The notes of {name} were not kept: {reason}.</source>
        <translation>{name} 的备注未能保存：{reason}。</translation>
    </message>
    <message>
        <source>{name} could not be renamed: {reason}. Close programs that show its files, then try again.</source>
        <translation>{name} 无法重命名：{reason}。请关闭正在使用其文件的程序，再试一次。</translation>
    </message>
    <message>
        <source>{name} is being trained and stays. Stop it, then delete it.</source>
        <translation>{name} 正在训练，未删除。请先停止，再删除。</translation>
    </message>
    <message>
        <source>{name} could not be deleted: {reason}. Close programs that show its files, then try again.</source>
        <translation>{name} 无法删除：{reason}。请关闭正在使用其文件的程序，再试一次。</translation>
    </message>
    <message>
        <source>The plots have room for ten more runs. Hide some to show others.</source>
        <translation>图表最多可叠加十次运行。请先隐藏一些，再显示其他的。</translation>
    </message>
</context>
<context>
    <name>RunsPage</name>
    <message>
        <source>Open</source>
        <translation>打开</translation>
    </message>
    <message>
        <source>Resume</source>
        <translation>继续</translation>
    </message>
    <message>
        <source>Open folder</source>
        <translation>打开文件夹</translation>
    </message>
    <message>
        <source>Refresh</source>
        <translation>刷新</translation>
    </message>
    <message>
        <source>Runs</source>
        <translation>运行记录</translation>
    </message>
    <message>
        <source>No runs yet. What you train appears here.</source>
        <translation>还没有运行记录。训练过的模型会显示在这里。</translation>
    </message>
    <message>
        <source>Export into an empty folder, or into a new one inside the folder that you choose</source>
        <translation>导出到空文件夹，或在所选文件夹中新建一个</translation>
    </message>
    <message>
        <source>{found} of {all} runs</source>
        <translation>{all} 次运行中的 {found} 次</translation>
    </message>
    <message>
        <source>1 run</source>
        <translation>1 次运行</translation>
    </message>
    <message>
        <source>{count} runs</source>
        <translation>{count} 次运行</translation>
    </message>
    <message>
        <source>{count} selected</source>
        <translation>已选择 {count} 次</translation>
    </message>
    <message>
        <source>Reading {name}: {share}</source>
        <translation>正在读取 {name}：{share}</translation>
    </message>
    <message>
        <source>Hide in plots</source>
        <translation>从图中隐藏</translation>
    </message>
    <message>
        <source>Show in plots</source>
        <translation>在图中显示</translation>
    </message>
    <message>
        <source>Take out of the archive</source>
        <translation>移出归档</translation>
    </message>
    <message>
        <source>Archive</source>
        <translation>归档</translation>
    </message>
    <message>
        <source>No run is found. Change the search, or choose “All”.</source>
        <translation>没有找到运行。请更改搜索内容，或选择“全部”。</translation>
    </message>
    <message>
        <source>All runs are in the archive.</source>
        <translation>所有运行都已归档。</translation>
    </message>
    <message>
        <source>Compare</source>
        <translation>比较</translation>
    </message>
    <message>
        <source>Rename</source>
        <translation>重命名</translation>
    </message>
    <message>
        <source>Delete…</source>
        <translation>删除…</translation>
    </message>
    <message>
        <source>Lays the chosen runs over the plots, ten at most.</source>
        <translation>将所选运行叠加到图表上，最多十次。</translation>
    </message>
    <message>
        <source>Choose two or more runs to see where their settings differ.</source>
        <translation>选择两次或更多运行，查看设置的差异。</translation>
    </message>
    <message>
        <source>More</source>
        <translation>更多</translation>
    </message>
    <message>
        <source>Details</source>
        <translation>详情</translation>
    </message>
    <message>
        <source>Search name, preset, data, tags, note</source>
        <translation>搜索名称、预设、数据、标签、备注</translation>
    </message>
    <message>
        <source>Search the runs</source>
        <translation>搜索运行</translation>
    </message>
    <message>
        <source>Which runs</source>
        <translation>显示哪些运行</translation>
    </message>
    <message>
        <source>Not archived</source>
        <translation>未归档</translation>
    </message>
    <message>
        <source>Archived</source>
        <translation>已归档</translation>
    </message>
    <message>
        <source>All</source>
        <translation>全部</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
    <message>
        <source>Height of the table</source>
        <translation>表格高度</translation>
    </message>
    <message>
        <source>Sort by</source>
        <translation>排序方式</translation>
    </message>
    <message>
        <source>Shown in plots</source>
        <translation>在图中显示</translation>
    </message>
    <message>
        <source>Name</source>
        <translation>名称</translation>
    </message>
    <message>
        <source>State</source>
        <translation>状态</translation>
    </message>
    <message>
        <source>Step</source>
        <translation>步数</translation>
    </message>
    <message>
        <source>Best loss</source>
        <translation>最佳损失</translation>
    </message>
    <message>
        <source>Tokens/s</source>
        <translation>词元/秒</translation>
    </message>
    <message>
        <source>Trained for</source>
        <translation>训练时长</translation>
    </message>
    <message>
        <source>Preset</source>
        <translation>预设</translation>
    </message>
    <message>
        <source>Data</source>
        <translation>数据</translation>
    </message>
    <message>
        <source>Started</source>
        <translation>开始时间</translation>
    </message>
    <message>
        <source>Tags</source>
        <translation>标签</translation>
    </message>
</context>
<context>
    <name>SamplesCard</name>
    <message>
        <source>{number} of {count}, {tokens} tokens</source>
        <translation>第 {number} 个，共 {count} 个，{tokens} 词元</translation>
    </message>
    <message>
        <source>Document {number}</source>
        <translation>文档 {number}</translation>
    </message>
    <message>
        <source>… and {count} more tokens</source>
        <translation>…… 还有 {count} 个词元</translation>
    </message>
    <message>
        <source>Token {id}</source>
        <translation>词元 {id}</translation>
    </message>
    <message>
        <source>First samples, as the model gets them</source>
        <translation>模型看到的前几个样本</translation>
    </message>
    <message>
        <source>Previous sample</source>
        <translation>上一个样本</translation>
    </message>
    <message>
        <source>Next sample</source>
        <translation>下一个样本</translation>
    </message>
    <message>
        <source>learned</source>
        <translation>学习</translation>
    </message>
    <message>
        <source>given</source>
        <translation>给定</translation>
    </message>
</context>
<context>
    <name>SamplesPage</name>
    <message>
        <source>All prompts</source>
        <translation>所有提示</translation>
    </message>
    <message>
        <source>step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>{count} texts, steps {oldest} to {newest}</source>
        <translation>{count} 段文本，第 {oldest} 至 {newest} 步</translation>
    </message>
    <message>
        <source>Step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>as expected</source>
        <translation>与预期一致</translation>
    </message>
    <message>
        <source>expected: {answer}</source>
        <translation>预期：{answer}</translation>
    </message>
    <message>
        <source>Beginning of a text for the model to go on from</source>
        <translation>输入一段开头，让模型接着写</translation>
    </message>
    <message>
        <source>Prompt</source>
        <translation>提示</translation>
    </message>
    <message>
        <source>Write now</source>
        <translation>立即生成</translation>
    </message>
    <message>
        <source>Set prompts…</source>
        <translation>设置提示…</translation>
    </message>
    <message>
        <source>Which prompts the model writes from while it learns</source>
        <translation>模型学习时用哪些提示来生成</translation>
    </message>
    <message>
        <source>Samples</source>
        <translation>示例文本</translation>
    </message>
    <message>
        <source>Order of the samples</source>
        <translation>示例的顺序</translation>
    </message>
    <message>
        <source>Samples of which prompt</source>
        <translation>哪个提示的示例</translation>
    </message>
    <message>
        <source>Newest first</source>
        <translation>最新在前</translation>
    </message>
    <message>
        <source>By prompt</source>
        <translation>按提示</translation>
    </message>
    <message>
        <source>Nothing written yet. Samples appear here while the model learns.</source>
        <translation>还没有生成文本。训练过程中，示例文本会显示在这里。</translation>
    </message>
</context>
<context>
    <name>SamplingRow</name>
    <message>
        <source>Temperature</source>
        <translation>温度</translation>
    </message>
    <message>
        <source>Top-k</source>
        <translation>Top-k</translation>
    </message>
    <message>
        <source>Top-p</source>
        <translation>Top-p</translation>
    </message>
    <message>
        <source>Max tokens</source>
        <translation>最多词元</translation>
    </message>
    <message>
        <source>Seed</source>
        <translation>种子</translation>
    </message>
    <message>
        <source>Higher is more varied, lower more certain; 0 always takes the likeliest token.</source>
        <translation>越高越多样，越低越稳定；0 表示总是取概率最大的词元。</translation>
    </message>
    <message>
        <source>Draw only from so many of the likeliest tokens; 0: no limit.</source>
        <translation>只从概率最大的若干个词元中抽取；0 表示不限。</translation>
    </message>
    <message>
        <source>Draw only from the likeliest tokens that together reach this share; 1: no limit.</source>
        <translation>只从累计概率达到该比例的词元中抽取；1 表示不限。</translation>
    </message>
    <message>
        <source>The text ends after so many tokens at the latest.</source>
        <translation>文本最多生成这么多词元。</translation>
    </message>
    <message>
        <source>The same seed, prompt and checkpoint give the same text again.</source>
        <translation>种子、提示和检查点都相同时，生成的文本也相同。</translation>
    </message>
    <message>
        <source>Another seed</source>
        <translation>换一个种子</translation>
    </message>
</context>
<context>
    <name>Settings</name>
    <message>
        <source>, </source>
        <translation>，</translation>
    </message>
    <message>
        <source>off</source>
        <translation>关</translation>
    </message>
    <message>
        <source>on</source>
        <translation>开</translation>
    </message>
    <message>
        <source>{setting} ({unit})</source>
        <translation>{setting}（{unit}）</translation>
    </message>
</context>
<context>
    <name>SetupPanel</name>
    <message>
        <source>for the next run</source>
        <translation>用于下一次运行</translation>
    </message>
    <message>
        <source>Preset</source>
        <translation>预设</translation>
    </message>
    <message>
        <source>Data</source>
        <translation>数据</translation>
    </message>
    <message>
        <source>Validation data</source>
        <translation>验证数据</translation>
    </message>
    <message>
        <source>Run name</source>
        <translation>运行名称</translation>
    </message>
    <message>
        <source>Main settings</source>
        <translation>主要设置</translation>
    </message>
    <message>
        <source>chosen from preset and time</source>
        <translation>按预设和时间自动命名</translation>
    </message>
    <message>
        <source>All settings…</source>
        <translation>全部设置…</translation>
    </message>
</context>
<context>
    <name>Shortcuts</name>
    <message>
        <source>Keyboard shortcuts</source>
        <translation>键盘快捷键</translation>
    </message>
    <message>
        <source>Tab and Shift+Tab reach every field and button; the space bar presses it.</source>
        <translation>用 Tab 和 Shift+Tab 可到达每个输入框和按钮，按空格键即可按下按钮。</translation>
    </message>
    <message>
        <source> or </source>
        <translation> 或 </translation>
    </message>
</context>
<context>
    <name>SourcesTable</name>
    <message>
        <source>Sources</source>
        <translation>数据来源</translation>
    </message>
    <message>
        <source>Source</source>
        <translation>来源</translation>
    </message>
    <message>
        <source>Format</source>
        <translation>格式</translation>
    </message>
    <message>
        <source>Columns in use</source>
        <translation>使用的列</translation>
    </message>
    <message>
        <source>Files</source>
        <translation>文件</translation>
    </message>
    <message>
        <source>Size</source>
        <translation>大小</translation>
    </message>
</context>
<context>
    <name>State</name>
    <message>
        <source>Ready</source>
        <translation>就绪</translation>
    </message>
    <message>
        <source>Starting</source>
        <translation>正在启动</translation>
    </message>
    <message>
        <source>Preparing</source>
        <translation>准备中</translation>
    </message>
    <message>
        <source>Compiling</source>
        <translation>正在编译</translation>
    </message>
    <message>
        <source>Training</source>
        <translation>训练中</translation>
    </message>
    <message>
        <source>Evaluating</source>
        <translation>评估中</translation>
    </message>
    <message>
        <source>Saving</source>
        <translation>保存中</translation>
    </message>
    <message>
        <source>Paused</source>
        <translation>已暂停</translation>
    </message>
    <message>
        <source>Stopping</source>
        <translation>正在停止</translation>
    </message>
    <message>
        <source>Ending</source>
        <translation>正在结束</translation>
    </message>
    <message>
        <source>Finished</source>
        <translation>已完成</translation>
    </message>
    <message>
        <source>Stopped</source>
        <translation>已停止</translation>
    </message>
    <message>
        <source>Failed</source>
        <translation>失败</translation>
    </message>
    <message>
        <source>Crashed</source>
        <translation>意外结束</translation>
    </message>
    <message>
        <source>Running</source>
        <translation>运行中</translation>
    </message>
    <message>
        <source>Interrupted</source>
        <translation>已中断</translation>
    </message>
</context>
<context>
    <name>StepTime</name>
    <message>
        <source>Time of a step (ms)</source>
        <translation>每步时间（毫秒）</translation>
    </message>
    <message>
        <source>No data yet</source>
        <translation>尚无数据</translation>
    </message>
    <message>
        <source>Now</source>
        <translation>当前</translation>
    </message>
</context>
<context>
    <name>Sweep</name>
    <message>
        <source>no second setting</source>
        <translation>不用第二项设置</translation>
    </message>
    <message>
        <source>Setting</source>
        <translation>设置项</translation>
    </message>
    <message>
        <source>these values</source>
        <translation>指定取值</translation>
    </message>
    <message>
        <source>even steps</source>
        <translation>等差</translation>
    </message>
    <message>
        <source>even factors</source>
        <translation>等比</translation>
    </message>
    <message>
        <source>How the values are given</source>
        <translation>取值方式</translation>
    </message>
    <message>
        <source>Values, with commas between them</source>
        <translation>取值，以逗号分隔</translation>
    </message>
    <message>
        <source>from</source>
        <translation>从</translation>
    </message>
    <message>
        <source>to</source>
        <translation>到</translation>
    </message>
    <message>
        <source>number of values</source>
        <translation>取值个数</translation>
    </message>
    <message>
        <source>One value is needed here.</source>
        <translation>这里需要填一个值。</translation>
    </message>
    <message>
        <source>“{value}” does not fit: even factors go from a number above 0.</source>
        <translation>“{value}”不合适：等比取值的两端必须大于 0。</translation>
    </message>
    <message>
        <source>“{value}” does not fit: a whole number from 1 to {count} is needed.</source>
        <translation>“{value}”不合适：需要 1 到 {count} 之间的整数。</translation>
    </message>
    <message>
        <source>At least one value is needed.</source>
        <translation>至少需要一个值。</translation>
    </message>
    <message>
        <source>At most {count} values.</source>
        <translation>最多 {count} 个取值。</translation>
    </message>
    <message>
        <source>, </source>
        <translation>，</translation>
    </message>
    <message>
        <source>{values} do not fit. Allowed: {range}</source>
        <translation>{values} 不合适。允许的值：{range}</translation>
    </message>
    <message>
        <source>{value} does not fit. {why}</source>
        <translation>{value} 不合适。{why}</translation>
    </message>
    <message>
        <source>Sweep</source>
        <translation>参数扫描</translation>
    </message>
    <message>
        <source>One run for every value, or for every pair of values. All else stays as it is set at the left, the seed too, so that the runs can be compared.</source>
        <translation>每个取值（或每对取值）各训练一次。其余设置与左侧相同，随机种子也相同，因此各次运行可以比较。</translation>
    </message>
    <message>
        <source>Names begin with</source>
        <translation>名称前缀</translation>
    </message>
    <message>
        <source>Runs to be added</source>
        <translation>将加入的运行</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Add {count} to the queue</source>
        <translation>将 {count} 个加入队列</translation>
    </message>
    <message>
        <source>Choose two different settings.</source>
        <translation>请选择两项不同的设置。</translation>
    </message>
    <message>
        <source>Give the runs a name.</source>
        <translation>请给这些运行取个名称。</translation>
    </message>
    <message>
        <source>{count} runs: at most {limit} are added at once.</source>
        <translation>共 {count} 个运行：一次最多加入 {limit} 个。</translation>
    </message>
    <message>
        <source>Runs: {count}. {wrong} more cannot be trained and are left out.</source>
        <translation>运行数：{count}。另有 {wrong} 个无法训练，不会加入。</translation>
    </message>
    <message>
        <source>Runs: {count}</source>
        <translation>运行数：{count}</translation>
    </message>
</context>
<context>
    <name>Telling</name>
    <message>
        <source>The trainer could not be started. Run the set-up again, then try once more.</source>
        <translation>无法启动训练程序。请重新运行安装程序，然后再试一次。</translation>
    </message>
    <message>
        <source>The trainer ended unexpectedly (code {code}). Resume goes on from its last checkpoint.</source>
        <translation>训练程序意外结束（代码 {code}）。点击“继续”可从最近的检查点接着训练。</translation>
    </message>
    <message>
        <source>The trainer ended unexpectedly (code {code}) before its first checkpoint.</source>
        <translation>训练程序在保存第一个检查点之前意外结束（代码 {code}）。</translation>
    </message>
    <message>
        <source>Started again {count} times, and failed each time without getting further: {reason}</source>
        <translation>已重新启动 {count} 次，每次都未能再前进：{reason}</translation>
    </message>
    <message>
        <source>The trainer speaks a newer protocol ({version}). Update the window, too.</source>
        <translation>训练程序使用较新的协议（{version}）。请同时更新窗口程序。</translation>
    </message>
</context>
<context>
    <name>Tiles</name>
    <message>
        <source>step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>best {loss} at step {step}</source>
        <translation>最佳 {loss} · {step} 步</translation>
    </message>
    <message>
        <source>{share} of the GPU&apos;s peak</source>
        <translation>达到 GPU 峰值的 {share}</translation>
    </message>
    <message>
        <source>of {total} in this machine</source>
        <translation>本机共 {total}</translation>
    </message>
    <message>
        <source>of {total}</source>
        <translation>共 {total}</translation>
    </message>
    <message>
        <source>Training loss</source>
        <translation>训练损失</translation>
    </message>
    <message>
        <source>Eval loss</source>
        <translation>评估损失</translation>
    </message>
    <message>
        <source>Mean loss per token of a fixed sample of all held-out data, the same at every evaluation.</source>
        <translation>从全部验证数据中抽取的固定样本的每词元平均损失，每次评估使用相同的样本。</translation>
    </message>
    <message>
        <source>Tokens per second</source>
        <translation>吞吐量（词元/秒）</translation>
    </message>
    <message>
        <source>Tokens that the loss counts: of conversations the answers only, without prompts and padding.</source>
        <translation>计入损失的词元：对话中只算回答，不含提示和填充。</translation>
    </message>
    <message>
        <source>VRAM</source>
        <translation>显存</translation>
    </message>
    <message>
        <source>Trainer&apos;s memory</source>
        <translation>训练进程内存</translation>
    </message>
</context>
<context>
    <name>Tray</name>
    <message>
        <source>Show the window</source>
        <translation>显示窗口</translation>
    </message>
    <message>
        <source>Pause</source>
        <translation>暂停</translation>
    </message>
    <message>
        <source>Resume</source>
        <translation>继续</translation>
    </message>
    <message>
        <source>Stop and save</source>
        <translation>停止并保存</translation>
    </message>
    <message>
        <source>Stop, save and quit</source>
        <translation>停止、保存并退出</translation>
    </message>
    <message>
        <source>step {step} of {total}</source>
        <translation>第 {step} / {total} 步</translation>
    </message>
    <message>
        <source>step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>loss {loss}</source>
        <translation>损失 {loss}</translation>
    </message>
    <message>
        <source>about {hours} h {minutes} min left</source>
        <translation>剩余约 {hours} 小时 {minutes} 分钟</translation>
    </message>
    <message>
        <source>about {minutes} min left</source>
        <translation>剩余约 {minutes} 分钟</translation>
    </message>
    <message>
        <source>Training goes on. Click here to see it.</source>
        <translation>训练仍在继续。点击此处查看。</translation>
    </message>
</context>
<context>
    <name>TryPage</name>
    <message>
        <source>Device: auto</source>
        <translation>设备：自动</translation>
    </message>
    <message>
        <source>Write a beginning or a question below, then press Generate.</source>
        <translation>在下方输入开头或问题，然后按“生成”。</translation>
    </message>
    <message>
        <source>No checkpoint to try yet. Start a run at the left: as soon as it has saved its first checkpoint, its model writes here.</source>
        <translation>还没有可以试用的检查点。请在左侧开始一次运行：保存第一个检查点后，就可以在这里试用它的模型。</translation>
    </message>
    <message>
        <source>Compare</source>
        <translation>对比</translation>
    </message>
    <message>
        <source>Two checkpoints side by side, with the same prompt and seed</source>
        <translation>用相同的提示和种子并排试用两个检查点</translation>
    </message>
    <message>
        <source>New conversation</source>
        <translation>新对话</translation>
    </message>
    <message>
        <source>Clear what was written, and begin anew</source>
        <translation>清空已生成的内容，重新开始</translation>
    </message>
    <message>
        <source>Device</source>
        <translation>设备</translation>
    </message>
    <message>
        <source>Prompt</source>
        <translation>提示</translation>
    </message>
    <message>
        <source>Beginning of a text, or a question</source>
        <translation>文本的开头，或一个问题</translation>
    </message>
    <message>
        <source>Generate</source>
        <translation>生成</translation>
    </message>
    <message>
        <source>Ctrl+Enter</source>
        <translation>Ctrl+Enter</translation>
    </message>
    <message>
        <source>Stop</source>
        <translation>停止</translation>
    </message>
    <message>
        <source>Esc; what was written stays</source>
        <translation>Esc；已生成的内容会保留</translation>
    </message>
    <message>
        <source>Regenerate</source>
        <translation>重新生成</translation>
    </message>
    <message>
        <source>The last text again, with another seed</source>
        <translation>换一个种子，重新生成上一段文本</translation>
    </message>
</context>
<context>
    <name>Trying</name>
    <message>
        <source>Step {step}</source>
        <translation>第 {step} 步</translation>
    </message>
    <message>
        <source>loss {loss}</source>
        <translation>损失 {loss}</translation>
    </message>
    <message>
        <source>best</source>
        <translation>最佳</translation>
    </message>
    <message>
        <source>final</source>
        <translation>最终</translation>
    </message>
    <message>
        <source>before a failure</source>
        <translation>故障前保存</translation>
    </message>
    <message>
        <source>Newest: none yet</source>
        <translation>最新：尚无</translation>
    </message>
    <message>
        <source>Newest: {checkpoint}</source>
        <translation>最新：{checkpoint}</translation>
    </message>
    <message>
        <source>On the GPU</source>
        <translation>在 GPU 上运行</translation>
    </message>
    <message>
        <source>On the CPU: no GPU was found</source>
        <translation>在 CPU 上运行：未找到 GPU</translation>
    </message>
    <message>
        <source>On the CPU: training has the only GPU</source>
        <translation>在 CPU 上运行：唯一的 GPU 正在训练</translation>
    </message>
    <message>
        <source>On another GPU than training</source>
        <translation>使用训练以外的另一块 GPU</translation>
    </message>
    <message>
        <source>Seed {seed}</source>
        <translation>种子 {seed}</translation>
    </message>
    <message>
        <source>Step {step}, seed {seed}</source>
        <translation>第 {step} 步，种子 {seed}</translation>
    </message>
    <message>
        <source>… the set length is reached</source>
        <translation>……已达到设定的长度</translation>
    </message>
    <message>
        <source>stopped</source>
        <translation>已停止</translation>
    </message>
    <message>
        <source>{tokens} tokens, {rate} tokens/s</source>
        <translation>{tokens} 个词元，{rate} 词元/秒</translation>
    </message>
    <message>
        <source>it sees only the newest {seen} of {given} tokens</source>
        <translation>只能看到 {given} 个词元中最近的 {seen} 个</translation>
    </message>
    <message>
        <source>Step {step} is there now: the next text is written by it</source>
        <translation>已有第 {step} 步的检查点：下一段文本将由它生成</translation>
    </message>
    <message>
        <source>No longer on disk; it stays loaded until another is chosen</source>
        <translation>已不在磁盘上；选择其他检查点之前仍可继续使用</translation>
    </message>
    <message>
        <source>This checkpoint is no longer on disk: newer ones took its place. Choose another.</source>
        <translation>该检查点已不在磁盘上，已被更新的检查点取代。请选择其他检查点。</translation>
    </message>
</context>
<context>
    <name>Unit</name>
    <message>
        <source>steps</source>
        <translation>步</translation>
    </message>
    <message>
        <source>documents</source>
        <translation>篇文档</translation>
    </message>
    <message>
        <source>tokens</source>
        <translation>词元</translation>
    </message>
    <message>
        <source>batches</source>
        <translation>批</translation>
    </message>
    <message>
        <source>files</source>
        <translation>个文件</translation>
    </message>
    <message>
        <source>trials</source>
        <translation>次试算</translation>
    </message>
</context>
<context>
    <name>ValidationList</name>
    <message>
        <source>Validation data</source>
        <translation>验证数据</translation>
    </message>
    <message>
        <source>None, or the data&apos;s validation split</source>
        <translation>无，或数据集的验证划分</translation>
    </message>
    <message>
        <source>{share} of the data, or its validation split</source>
        <translation>数据的 {share}，或其验证划分</translation>
    </message>
    <message>
        <source>Add file…</source>
        <translation>添加文件…</translation>
    </message>
    <message>
        <source>Add folder…</source>
        <translation>添加文件夹…</translation>
    </message>
    <message>
        <source>Measure eval loss on files of your own</source>
        <translation>用自己的文件测量评估损失</translation>
    </message>
    <message>
        <source>Add validation data</source>
        <translation>添加验证数据</translation>
    </message>
    <message>
        <source>Add…</source>
        <translation>添加…</translation>
    </message>
    <message>
        <source>Remove</source>
        <translation>移除</translation>
    </message>
    <message>
        <source>Add files to evaluate</source>
        <translation>添加用于评估的文件</translation>
    </message>
    <message>
        <source>Add a folder to evaluate</source>
        <translation>添加用于评估的文件夹</translation>
    </message>
</context>
<context>
    <name>ViewingStrip</name>
    <message>
        <source>Opening {name}: {share}</source>
        <translation>正在打开 {name}：{share}</translation>
    </message>
    <message>
        <source>Showing the run {name}  ·  {state} at step {step}</source>
        <translation>正在查看运行 {name}  ·  {state}，第 {step} 步</translation>
    </message>
    <message>
        <source>Resume this run</source>
        <translation>继续此次运行</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
</context>
<context>
    <name>Voice</name>
    <message>
        <source>The trainer could not be started. Run the set-up again, then try once more.</source>
        <translation>无法启动训练程序。请重新运行安装程序，然后再试一次。</translation>
    </message>
    <message>
        <source>The model&apos;s process ended unexpectedly (code {code}). {words}</source>
        <translation>模型进程意外结束（代码 {code}）。{words}</translation>
    </message>
</context>
<context>
    <name>Welcome</name>
    <message>
        <source>The preset that fits: {preset}</source>
        <translation>适合的预设：{preset}</translation>
    </message>
    <message>
        <source>Chosen. Now add your data: drop it anywhere on this window.</source>
        <translation>已选用。现在添加数据：拖到本窗口任意位置即可。</translation>
    </message>
    <message>
        <source>Don&apos;t show this again</source>
        <translation>不再显示</translation>
    </message>
    <message>
        <source>Close</source>
        <translation>关闭</translation>
    </message>
    <message>
        <source>Chosen. Next: Check or Start, above.</source>
        <translation>已选用。下一步：点击上方的“检查”或“开始”。</translation>
    </message>
    <message>
        <source>Welcome to Traindeck</source>
        <translation>欢迎使用 Traindeck</translation>
    </message>
    <message>
        <source>Train a language model of your own, on this machine. Nothing leaves it.</source>
        <translation>在这台电脑上训练您自己的语言模型，数据不会离开本机。</translation>
    </message>
    <message>
        <source>This machine</source>
        <translation>这台电脑</translation>
    </message>
    <message>
        <source>Use this preset</source>
        <translation>使用此预设</translation>
    </message>
    <message>
        <source>Or see a model learn first</source>
        <translation>或者，先看一个模型学习</translation>
    </message>
    <message>
        <source>A small model learns to write Python, in some minutes. Nothing to download.</source>
        <translation>一个小模型几分钟内学会写 Python，无需下载任何内容。</translation>
    </message>
    <message>
        <source>Try it now with built-in data</source>
        <translation>用内置数据立即试试</translation>
    </message>
    <message>
        <source>GPU</source>
        <translation>显卡</translation>
    </message>
    <message>
        <source>Memory</source>
        <translation>内存</translation>
    </message>
    <message>
        <source>Processor</source>
        <translation>处理器</translation>
    </message>
    <message>
        <source>Looking…</source>
        <translation>正在查看…</translation>
    </message>
    <message>
        <source>{size}, of which {free} are free</source>
        <translation>{size}，其中 {free} 可用</translation>
    </message>
    <message>
        <source>{name}, {count} cores</source>
        <translation>{name}，{count} 核</translation>
    </message>
    <message>
        <source>No NVIDIA GPU: small models train on the processor</source>
        <translation>没有 NVIDIA 显卡：小模型可在处理器上训练</translation>
    </message>
    <message>
        <source>{name}, {vram} of VRAM</source>
        <translation>{name}，显存 {vram}</translation>
    </message>
    <message>
        <source>{count} × {name}, {vram} of VRAM each</source>
        <translation>{count} × {name}，每块显存 {vram}</translation>
    </message>
    <message>
        <source>No GPU to compute on and {ram} of memory: the smallest model fits anywhere.</source>
        <translation>没有可用的显卡，内存 {ram}：最小的模型在任何电脑上都能运行。</translation>
    </message>
    <message>
        <source>There is no GPU to compute on, and {ram} of memory are enough for this model.</source>
        <translation>没有可用的显卡，{ram} 内存足够训练这个模型。</translation>
    </message>
    <message>
        <source>The {gpu} has {vram} of VRAM: a small model and small batches fit.</source>
        <translation>{gpu} 有 {vram} 显存，适合小模型和小批次。</translation>
    </message>
    <message>
        <source>The {gpu} has {vram} of VRAM: enough for this model and its batches.</source>
        <translation>{gpu} 有 {vram} 显存，足够训练这个模型。</translation>
    </message>
    <message>
        <source>The {gpu} has {vram} of VRAM: room for a larger model.</source>
        <translation>{gpu} 有 {vram} 显存，可以训练更大的模型。</translation>
    </message>
    <message>
        <source>The {gpu} has {vram} of VRAM, and {cores} cores and {ram} of memory feed it.</source>
        <translation>{gpu} 有 {vram} 显存，并有 {cores} 个核心和 {ram} 内存为它供给数据。</translation>
    </message>
    <message>
        <source>The {gpu} has {vram} of VRAM, but {ram} of memory are little: this preset spares them.</source>
        <translation>{gpu} 有 {vram} 显存，但内存只有 {ram}：此预设节省内存。</translation>
    </message>
    <message>
        <source>A run computes on one GPU; “Device” among all settings says on which.</source>
        <translation>一次训练只用一块显卡；用哪一块由“全部设置”中的“设备”决定。</translation>
    </message>
    <message>
        <source>An NVIDIA card is in this machine, but its driver is not installed. Install it from https://www.nvidia.com/drivers, then run “{command}”.</source>
        <translation>本机有 NVIDIA 显卡，但没有安装驱动。请从 https://www.nvidia.com/drivers 安装，然后运行“{command}”。</translation>
    </message>
    <message>
        <source>The NVIDIA driver does not answer. Restart the computer; if that changes nothing, install it anew.</source>
        <translation>NVIDIA 驱动没有响应。请重启电脑；若无改变，请重新安装驱动。</translation>
    </message>
    <message>
        <source>The NVIDIA driver was updated, but the old one still runs. Restart the computer.</source>
        <translation>NVIDIA 驱动已更新，但旧版本仍在运行。请重启电脑。</translation>
    </message>
    <message>
        <source>The NVIDIA driver is there, but finds no card. Check that the card is seated, powered and not disabled.</source>
        <translation>NVIDIA 驱动已安装，但未找到显卡。请检查显卡是否插好、供电，且未被禁用。</translation>
    </message>
    <message>
        <source>The NVIDIA driver {driver} is too old for training on this card. Update it from https://www.nvidia.com/drivers, then run “{command}”.</source>
        <translation>NVIDIA 驱动 {driver} 太旧，无法用这块显卡训练。请从 https://www.nvidia.com/drivers 更新，然后运行“{command}”。</translation>
    </message>
    <message>
        <source>The {gpu} is too old for PyTorch. Training uses the processor.</source>
        <translation>{gpu} 太旧，PyTorch 不再支持，将用处理器训练。</translation>
    </message>
    <message>
        <source>The package nvidia-ml-py, which tells of GPUs, cannot be loaded. Run “{command}”.</source>
        <translation>无法加载用于查看显卡的 nvidia-ml-py。请运行“{command}”。</translation>
    </message>
    <message>
        <source>PyTorch is installed in a build for the processor, so the GPU stays idle. Run “{command}”.</source>
        <translation>安装的是 CPU 版 PyTorch，显卡会闲着。请运行“{command}”。</translation>
    </message>
</context>
<context>
    <name>_Banner</name>
    <message>
        <source>Warning</source>
        <translation>警告</translation>
    </message>
    <message>
        <source>Error</source>
        <translation>错误</translation>
    </message>
    <message>
        <source>Details</source>
        <translation>详细信息</translation>
    </message>
    <message>
        <source>Resume</source>
        <translation>继续</translation>
    </message>
    <message>
        <source>Dismiss</source>
        <translation>关闭提示</translation>
    </message>
</context>
</TS>
