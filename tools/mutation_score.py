"""Print the share of mutants that the tests noticed; fail when it is below the gate."""

import argparse
import json
from pathlib import Path

STATS = Path("mutants/mutmut-cicd-stats.json")


def main() -> int:
    """Read what `mutmut export-cicd-stats` wrote, and judge it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gate", type=float, required=True, help="least score, in per cent")
    gate: float = parser.parse_args().gate

    counts: dict[str, int] = json.loads(STATS.read_text())
    # A mutant that never ends or kills the interpreter has been noticed too.
    noticed = counts["killed"] + counts["timeout"] + counts["segfault"]
    judged = counts["total"] - counts["skipped"]
    if judged == 0:
        print("no mutants were made")
        return 1

    score = 100 * noticed / judged
    told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    print(f"mutation score {score:.1f} % (at least {gate:g} %): {told}")
    return 0 if score >= gate else 1


if __name__ == "__main__":
    raise SystemExit(main())
