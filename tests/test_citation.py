"""The citation file agrees with the package."""

import re
from pathlib import Path

import metareplay as mr

CITATION = (Path(__file__).parent.parent / "CITATION.cff").read_text()


def test_the_version_is_the_packages() -> None:
    assert re.findall(r"^version: (.+)$", CITATION, flags=re.MULTILINE) == [mr.__version__]


def test_the_paper_is_the_preferred_citation() -> None:
    _, paper = CITATION.split("preferred-citation:")
    assert "Learning to Learn without Forgetting by Maximizing Transfer and Minimizing Interference" in paper
    names = re.findall(r"family-names: (\w+)", paper)
    assert names == ["Riemer", "Cases", "Ajemian", "Liu", "Rish", "Tu", "Tesauro"]
    assert "arXiv:1810.11910" in paper
