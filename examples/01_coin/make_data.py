"""Make the table of the coin example: 20000 people, of whom 30 % said yes.

The people are made up, so the answer is known: the posterior must come out near 0.3. Run it from anywhere; the table is
written beside this file, or to the path given.
"""

import csv
import random
import sys
from pathlib import Path

PEOPLE = 20000
SHARE = 0.3


def main(path: Path) -> None:
    """Write the table."""
    rng = random.Random(1)  # noqa: S311 (made-up people, no secret)
    yes = round(SHARE * PEOPLE)
    answers = [1] * yes + [0] * (PEOPLE - yes)
    rng.shuffle(answers)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["person", "said_yes"])
        writer.writerows(enumerate(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("people.csv"))
