#!/usr/bin/env python3
"""What streaming experts costs, against what is possible (docs/PERFORMANCE.md, "Experts on disk").

usage: tests/bench/experts.py BUILD [--rounds 5] [--folder DIR]
Makes the bench pack with `hearth synth` (2.8 GB in DIR, default /dev/shm: a drive can only be emulated on something faster), drops the page cache where it may, then
decodes forced tokens at three sizes of memory and two emulated drives, prefetch off and auto in turn, and prints medians; then prompts in sets of
different lengths. A point whose drive is less than 1.5 times as fast as the emulated one is marked."""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def bench(hearth, pack, *options):
    out = subprocess.run([hearth, "bench", "experts", pack, "--use-counts", "none", "--json", *map(str, options)], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def drop_caches():
    try:
        subprocess.run(["sync"], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        pass


def median(results, key):
    return statistics.median(r[key] for r in results)


def decode_points(hearth, pack, rounds):
    print(f"{'drive':>8} {'slots':>5} {'prefetch':>8} {'hits %':>6} {'MB/token':>8} {'tokens/s':>8} {'limit':>6} {'share %':>7} {'wait %':>6} {'raw GB/s':>8}")
    for rate in (1, 3.5):
        for slots in (20, 136, 294):
            arms = {arm: [] for arm in ("off", "auto")}
            for _ in range(rounds):
                for arm, results in arms.items():
                    drop_caches()
                    results.append(bench(hearth, pack, "--slots", slots, "--emulate-disk", f"{rate},80", "--prefetch", arm, "--tokens", 40, "--warm", 104))
            for arm, r in arms.items():
                raw = median(r, "raw_bytes_per_second") / 1e9
                mark = "" if raw >= 1.5 * rate else "  (the drive is too slow for this point)"
                print(f"{rate:>8} {slots:>5} {arm:>8} {100 * median(r, 'hit_rate'):>6.1f} {median(r, 'missed_bytes_per_token') / 1e6:>8.1f} "
                      f"{median(r, 'tokens_per_second'):>8.2f} {median(r, 'limit'):>6.2f} {100 * median(r, 'share'):>7.1f} {100 * median(r, 'wait_share'):>6.1f} "
                      f"{raw:>8.1f}{mark}", flush=True)


def prompt_points(hearth, pack, rounds):
    print(f"\n{'set':>5} {'slots':>5} {'GB read':>8} {'tokens/s':>8} {'wait %':>6}   prompt of 1,024 tokens, 1 GB/s")
    for slots in (136, 0):
        for rows in (64, 256, 1024):
            more = ("--slots", slots, "--emulate-disk", "1,80") if slots else ()
            r = [bench(hearth, pack, "--prompt", 1024, "--warm", 8, "--chunk", rows, *more) for _ in range(min(rounds, 3))]
            print(f"{rows:>5} {slots or 'all':>5} {median(r, 'bytes_read') / 1e9:>8.2f} {median(r, 'tokens_per_second'):>8.1f} "
                  f"{100 * median(r, 'wait_share'):>6.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default="/dev/shm")
    args = parser.parse_args()
    hearth = str(Path(args.build) / "cli" / "hearth")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        pack = f"{folder}/pack"
        subprocess.run([hearth, "synth", pack, "--like", "bench"], check=True, stderr=subprocess.DEVNULL)
        decode_points(hearth, pack, args.rounds)
        prompt_points(hearth, pack, args.rounds)


if __name__ == "__main__":
    sys.exit(main())
