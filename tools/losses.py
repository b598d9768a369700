"""Compare the held-out loss of a language model under each setting for slow networks.

    python tools/losses.py FOLDER [--steps N] [--seeds N] [SETTING …] -- mpirun -f HOSTS -n 2 -ppn 1

Trains the recipe clm, 11 million parameters, on the source code of Python's standard library. A SETTING is what
cpudist-train gets, such as "--compress bf16"; without one, all of SETTINGS. What is in FOLDER already is not trained
again, so the program can be stopped and goes on. loss.png of each run is its curve.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
from pathlib import Path

from cpudist.bench.report import table

SETTINGS = ("--compress none", "--compress bf16", "--compress int8", "--compress powersgd")
SETTINGS += tuple(f"--sync-every {every} --compress bf16" for every in (8, 32))
SETTINGS += ("--sync-every 8 --outer none",)
MODEL = ("--config_overrides", "n_layer=6,n_head=6,n_embd=384", "--vocab_size", "1024", "--block_size", "128")
TRAINING = ("--do_train", "--do_eval", "--per_device_train_batch_size", "8", "--learning_rate", "1e-3")
TRAINING += ("--lr_scheduler_type", "cosine", "--warmup_steps", "50", "--logging_steps", "32", "--save_strategy", "no")


def trained(folder: Path, launch: list[str], setting: str, steps: int, seed: int) -> float:
    """Return the held-out loss after a training that is or was made in `folder`, in nats per token."""
    record = folder / "cpudist.json"
    if not record.exists() or json.loads(record.read_text())["exit"] != "completed":
        text = ["--train_file", f"{sysconfig.get_path('stdlib')}/*.py", "--max_steps", str(steps), "--seed", str(seed)]
        words = ["--backend", "ccl", *setting.split(), "clm", *text, *MODEL, *TRAINING, "--output_dir", str(folder)]
        subprocess.run([*launch, str(Path(sys.executable).with_name("cpudist-train")), *words], check=True)
    return float(json.loads(record.read_text())["results"]["eval"]["eval_loss"])


def main() -> None:
    """Train under all settings in turn, seed by seed, and print the table after each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    words, launch = sys.argv[1:], []
    if "--" in words:
        words, launch = words[: words.index("--")], words[words.index("--") + 1 :]
    options = parser.parse_args(words)
    settings = options.settings or SETTINGS
    losses: dict[str, list[float]] = {setting: [] for setting in settings}
    for seed in range(options.seeds):
        for setting in settings:
            folder = options.folder / f"{setting.replace('--', '').replace(' ', '-')}-{options.steps}-{seed}"
            losses[setting].append(trained(folder, launch, setting, options.steps, seed))
        first = statistics.fmean(losses[settings[0]])
        rows = [
            [setting, *(f"{loss:.4f}" for loss in found), f"{statistics.fmean(found) / first - 1:+.2%}"]
            for setting, found in losses.items()
        ]
        print(table(["setting", *(f"seed {number}" for number in range(seed + 1)), "to the first"], rows), flush=True)


if __name__ == "__main__":
    main()
