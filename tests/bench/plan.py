"""Figures for docs/PERFORMANCE.md, "Plan": what hearth plan predicts beside what hearth bench experts measures, at six points of a synthetic pack (three numbers of slots, two
emulated drives), alternated, medians. Not a test. usage: python tests/bench/plan.py PACK [ROUNDS]   (HEARTH names the program, default build/release/cli/hearth)
The pack: hearth synth DIR --like bench. At 3.5 GB/s it must lie where reading is faster than 5 GB/s, for instance on tmpfs."""
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HEARTH = os.environ.get("HEARTH", str(Path(__file__).resolve().parents[2] / "build/release/cli/hearth"))
SLOTS, DRIVES = [16, 144, 300], ["1,80", "3.5,80"]


def hearth(*arguments):
    return json.loads(subprocess.run([HEARTH, *map(str, arguments), "--json"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout)


def point(pack, slots, drive, rounds):
    how = ["--slots", slots, "--emulate-disk", drive, "--prefetch", "auto", "--use-counts", "none"]
    plans, runs = [], []
    for _ in range(rounds):
        plans.append(hearth("plan", "--model", pack, *how))
        runs.append(hearth("bench", "experts", pack, *how, "--tokens", 96, "--warm", 72))

    def middle(results, key):
        return statistics.median(r[key] for r in results)

    said, was = middle(plans, "tokens_per_second"), middle(runs, "tokens_per_second")
    print(f"{drive:7} {slots:5} | {100 * middle(plans, 'hit_rate'):5.1f} {100 * middle(runs, 'hit_rate'):5.1f} | {said:7.2f} {was:7.2f} | {said / was:5.2f}"
          f" | {', '.join(format(r['tokens_per_second'], '.2f') for r in runs)} | {os.getloadavg()[0]:.1f}", flush=True)


def main():
    pack, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print("drive   slots | hits %: plan, run | tokens/s: plan, run | plan / run | runs | load")
    for drive in DRIVES:
        for slots in SLOTS:
            point(pack, slots, drive, rounds)


if __name__ == "__main__":
    main()
