"""Counting what was repaired and what was dropped, so that nothing goes missing in silence."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counts under their reasons; tallies of parts add up to the tally of the whole."""

    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        self.repaired.update(other.repaired)
        self.dropped.update(other.dropped)

    def to_json(self) -> dict[str, dict[str, int]]:
        """Reasons in alphabetical order, without those that never occurred."""
        return {
            "repaired": {key: count for key, count in sorted(self.repaired.items()) if count},
            "dropped": {key: count for key, count in sorted(self.dropped.items()) if count},
        }

    @classmethod
    def from_json(cls, counts: dict[str, dict[str, int]]) -> "Tally":
        return cls(repaired=Counter(counts["repaired"]), dropped=Counter(counts["dropped"]))
