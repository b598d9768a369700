"""Measure nanoGPT's tokens per second on one and two hosts, under torchrun with gloo and under cpudist.

    python benchmarks/two_hosts.py CLONE [FLAGS OF train.py]

CLONE is a clone of github.com/karpathy/nanoGPT in which data/shakespeare_char/prepare.py has run. As root: the hosts
are namespaces of this machine, each with half a core, which other programs do not get. The jobs take turns.
"""

import re
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))
from bed import Bed  # type: ignore[import-not-found]
from control_group import control_group  # type: ignore[import-not-found]
from jobs import BIN  # type: ignore[import-not-found]
from usage import asked

# With several ranks train.py takes GPUs; with these lines it takes the CPU.
_ON_CPU = {"f'cuda:{ddp_local_rank}'": "'cpu'", "torch.cuda.set_device": "str", "device_ids=[ddp_local_rank]": ""}
_SYSTEM = ["--device=cpu", "--backend=gloo", "--compile=False", "--dtype=float32", "--dataset=shakespeare_char"]
_MODEL = ["--n_layer=6", "--n_head=6", "--n_embd=384", "--dropout=0.0", "--block_size=64", "--batch_size=4"]
_LENGTH = ["--gradient_accumulation_steps=2", "--max_iters=18", "--eval_iters=1", "--out_dir=/tmp/nanogpt"]
_ROUNDS, _WARM = 3, 8  # _WARM iterations do not count
_TORCHRUN = ["torchrun", "--nproc-per-node=1", "--master-addr=h0", "--master-port=29500"]
_LAUNCH = ["cpudist", "launch", "--ppn", "1", "--hostfile", "{}", "--", "--compress"]
_JOBS = {  # name: the commands of h0 and h1
    "1 host, torchrun": [_TORCHRUN],
    "1 host, cpudist": [["cpudist-train"]],
    "2 hosts, torchrun": [[*_TORCHRUN, "--nnodes=2", f"--node-rank={rank}"] for rank in (0, 1)],
    "2 hosts, cpudist, none": [[*_LAUNCH, "none"]],
    "2 hosts, cpudist, auto": [[*_LAUNCH, "auto"]],
}

words = asked(__doc__)
clone = Path(words[0])
text = (clone / "train.py").read_text()
for old, new in _ON_CPU.items():
    text = text.replace(old, new)
(clone / "train_cpu.py").write_text(text)
with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    groups = [stack.enter_context(control_group()) for _ in range(2)]
    bed = stack.enter_context(Bed(folder, 2))
    for index, group in enumerate(groups):
        group.limit("cpu", cpu__cfs_period_us="8000", cpu__cfs_quota_us="4000", cpu__max="4000 8000")
        group.limit("cpu", cpu__shares="65536", cpu__weight="10000")
        group.limit("cpuset", cpuset__cpus=str(index))
        bed.join(f"h{index}", group)
    for rate in ("1gbit", "10gbit"):
        bed.limit(rate)
        speeds: dict[str, list[float]] = {name: [] for name in _JOBS}
        for name, commands in list(_JOBS.items()) * _ROUNDS:
            script = ["train_cpu.py", *_SYSTEM, *_MODEL, *_LENGTH, *words[1:]]
            lines = [[word.format(bed.hostfile()) for word in command] + script for command in commands]
            first, *others = [
                group.inside([str(BIN / program), *arguments])
                for group, (program, *arguments) in zip(groups, lines, strict=False)
            ]
            for command in others:
                bed.start("h1", command, folder / "h1.log", cwd=clone)
            ended = bed.run("h0", first, 500, {"CPUDIST_RUNS": str(folder)}, clone)
            times = [float(time) for time in re.findall(r"^iter .* time ([\d.]+)ms", ended.stdout, re.MULTILINE)]
            if len(times) <= _WARM:
                sys.exit(ended.output)
            tokens = re.findall(r"tokens per iteration will be: ([\d,]+)", ended.stdout)[0].replace(",", "")
            speeds[name].append(1000 * int(tokens) / statistics.median(times[_WARM:]))
        for name, each in speeds.items():
            ratios = [a / b for a, b in zip(each, speeds["1 host, torchrun"], strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times the first"
            print(f"{rate}, {name}: {statistics.median(each):.0f} tokens/s, {ratio}", flush=True)
