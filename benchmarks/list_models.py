"""How long `mstar list-models` takes, beside a bare interpreter: the budget is 250 ms with two plugins installed.

    python benchmarks/list_models.py [--rounds 20] [--json FILE]

Both commands run in turns, in fresh processes, on a site of two toy plugins; the figures are wall-clock medians. A
third process counts the modules that a listing imports, and names those that it should not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mstar_core.testing.distributions import TOY_FILES, install, toy_source
from mstar_core.testing.plugins import environment

BUDGET_MS = 250.0
PLUGINS = ("mstar-first", "mstar-second")
REQUIRES = ("mstar-core>=0.1",)
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "mstar list-models": ("-m", "mstar_core", "list-models"),
}
UNWANTED = ("torch", "numpy", "pydantic", "rich", "fastapi")


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        site = Path(directory)
        for name in PLUGINS:
            package = name.replace("-", "_")
            install(site, name, toy_source(package, package), files=TOY_FILES, requires=REQUIRES)
        variables = environment((site,), PLUGINS)
        times = in_turns(options.rounds, variables)
        imported = imported_modules(variables)
    figures = summary(times, imported)
    print_table(times, figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def in_turns(rounds: int, variables: Mapping[str, str]) -> dict[str, list[float]]:
    """Milliseconds of each command in each round; one round before the first fills caches and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, arguments in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], env=variables, check=True, capture_output=True)
            if number:
                times[name].append(1000 * (time.perf_counter() - started))
    return times


def imported_modules(variables: Mapping[str, str]) -> list[str]:
    """The modules that one listing imports, as the interpreter reports them."""
    command = [sys.executable, "-X", "importtime", *COMMANDS["mstar list-models"]]
    result = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in lines[1:]]


def summary(times: Mapping[str, Sequence[float]], imported: Sequence[str]) -> dict[str, object]:
    """The figures that are written down."""
    floor, listing = (statistics.median(times[name]) for name in COMMANDS)
    return {
        "rounds": len(times["mstar list-models"]),
        "plugins": len(PLUGINS),
        "floor_ms": round(floor, 1),
        "list_models_ms": round(listing, 1),
        "slowest_ms": round(max(times["mstar list-models"]), 1),
        "over_floor": round(listing / floor, 2),
        "budget_ms": BUDGET_MS,
        "within_budget": listing <= BUDGET_MS,
        "modules": len(imported),
        "unwanted": [name for name in UNWANTED if name in imported],
    }


def print_table(times: Mapping[str, Sequence[float]], figures: Mapping[str, object]) -> None:
    """Print medians and extremes."""
    print(f"{'command':<20}{'median ms':>10}{'fastest':>10}{'slowest':>10}")
    for name, values in times.items():
        print(f"{name:<20}{statistics.median(values):>10.1f}{min(values):>10.1f}{max(values):>10.1f}")
    verdict = "within" if figures["within_budget"] else "OVER"
    print(f"{verdict} the budget of {BUDGET_MS:g} ms")
    print(f"{figures['modules']} modules imported, unwanted among them: {figures['unwanted'] or 'none'}")


if __name__ == "__main__":
    main()
