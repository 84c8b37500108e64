#!/usr/bin/env python3
"""Shortens a text on standard input to its weightiest sentences: a summariser that needs no model, and no network.

summarise.py [--sentences N]
"""

import argparse
import re
import sys
from collections import Counter

COMMON = frozenset({"an", "and", "as", "at", "be", "by", "for", "from", "in", "is", "it", "of", "on", "the", "to"})


def words(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W\d_]{2,}", text.lower()) if word not in COMMON]


def summary(text: str, sentences: int) -> str:
    """The sentences whose words the text says most often, in their order."""
    said = [one.strip() for one in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if one.strip()]
    weight = Counter(words(text))

    def weigh(sentence: str) -> float:
        found = words(sentence)
        return sum(weight[word] for word in found) / (len(found) or 1)

    chosen = sorted(sorted(range(len(said)), key=lambda n: -weigh(said[n]))[:sentences])
    return " ".join(said[n] for n in chosen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=2)
    options = parser.parse_args()
    text = sys.stdin.read()
    if not text.strip():
        print("there is nothing to shorten", file=sys.stderr)
        return 1
    print(summary(text, options.sentences))
    return 0


if __name__ == "__main__":
    sys.exit(main())
