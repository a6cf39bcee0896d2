"""Print the share of mutants that the tests caught; fail if it is below the gate."""

import argparse
import json
from pathlib import Path

STATS = Path("mutants/mutmut-cicd-stats.json")


def main() -> int:
    """Read the statistics of `mutmut export-cicd-stats` and compare them with the gate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gate", type=float, required=True, help="minimum score, in per cent")
    gate: float = parser.parse_args().gate

    counts: dict[str, int] = json.loads(STATS.read_text())
    # A mutant that hangs or crashes the interpreter counts as caught.
    caught = counts["killed"] + counts["timeout"] + counts["segfault"]
    judged = counts["total"] - counts["skipped"]
    if judged == 0:
        print("there are no mutants")
        return 1

    score = 100 * caught / judged
    details = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count
    )
    print(f"mutation score {score:.1f} % (at least {gate:g} %): {details}")
    return 0 if score >= gate else 1


if __name__ == "__main__":
    raise SystemExit(main())
