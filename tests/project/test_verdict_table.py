"""docs/verdicts.md lists every sentence about a map, its condition, and the test that proves it.

`python -m tests.project.test_verdict_table` writes it again from the tables of the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from explainers.verdict.rules import CLAUSES, RULES
from saliscope.compute import headline
from saliscope.compute.ranking import messages as ranking
from saliscope.compute.trust import messages as trust

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "verdicts.md"
VERDICTS = "tests/explainers/metrics/test_verdict.py"
HEADLINE, TRUST = "tests/saliscope/compute/test_headline.py", "tests/saliscope/compute/test_trust.py"
RANKING = "tests/saliscope/compute/test_ranking.py"
PROOFS = {
    "rules": f"{VERDICTS}::test_each_rule_says_its_sentence",
    "clauses": f"{VERDICTS}::test_each_clause_follows_from_the_results",
    "headline": f"{HEADLINE}::test_the_headline_says_each_sentence",
    "subjects": f"{HEADLINE}::test_the_sentence_claims_only_what_the_method_shows",
    "class": f"{TRUST}::test_the_class_row",
    "weights": f"{TRUST}::test_the_weights_row",
    "ranking": f"{RANKING}::test_the_status_while_running_and_the_conclusion_at_the_end",
}
"""The test of each table."""
HEAD = """# What Saliscope says about a map

Every sentence that judges a map, its condition, and the test that proves it.
`python -m tests.project.test_verdict_table` writes the tables from the code. 500 generated situations
(`tests/saliscope/compute/test_situations.py`) check that no sentence contradicts another one or the numbers.

`judge(explanation, evaluation, randomization)` returns the verdict, and so do `Explanation.verdicts` and
`Evaluation.verdict` with what they know. The page shows it above the map and under "How faithful is this map?", in the
ranking, in figures, bundles, reports, the API and the tools for agents.
"""


def rows(table: dict[str, tuple[str, str]], proof: str) -> list[str]:
    """Return the rows of a table of sentences by name."""
    return [f"| {condition} | {escape(sentence)} | `{proof}` |" for condition, sentence in table.values()]


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """Return the document."""
    head = ["| condition | sentence | test |", "|---|---|---|"]
    weights = {name: each for name, each in trust.SENTENCES.items() if name.startswith(("weights", "method"))}
    classes = {name: each for name, each in trust.SENTENCES.items() if name not in weights}
    lines = [
        "## The verdict\n",
        "The first condition that holds decides. `mark` is the sign next to the sentence.\n",
        "| code | condition | sentence | mark | position? | test |\n|---|---|---|---|---|---|",
        *(
            f"| `{rule.code}` | {rule.condition} | {escape(rule.template)} | {rule.mark} | {position(rule.code)} | "
            f"`{PROOFS['rules']}` |"
            for rule in RULES
        ),
        "\nA map that hardly depends on the class or the weights is never good, and its position is not described.\n",
        "## {controls} and {dependence}\n",
        *head,
        *rows(CLAUSES, PROOFS["clauses"]),
        "\n## The headline\n",
        "The prediction, and then the position of the map, or the verdict if that does not allow a position.\n",
        *head,
        *rows(headline.SENTENCES, PROOFS["headline"]),
        *rows({name: (each, name) for name, each in headline.SUBJECTS.items()}, PROOFS["subjects"]),
        "\n## Numbers and curves of the check\n",
        *head,
        *rows(classes, PROOFS["class"]),
        *rows(weights, PROOFS["weights"]),
        "\n## The ranking\n",
        *head,
        *rows(ranking.CONCLUSIONS, PROOFS["ranking"]),
    ]
    return HEAD + "\n" + "\n".join(lines) + "\n"


def position(code: str) -> str:
    return {"better": "yes", "untested": "yes", "partly": "if better than a centered blob"}.get(code, "no")


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_test_of_the_page_exists() -> None:
    for proof in set(re.findall(r"`(tests/\S+::\w+)`", page())):
        file, name = proof.split("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), proof


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
