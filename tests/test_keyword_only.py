"""Records with more than three fields are made by naming the fields: positions of equal types are easily confused."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNCHECKED = ("types.py", "diagnosis/", "engine/", "figures/simulation.py")


def test_large_records_are_keyword_only():
    found = 0
    for path in [*ROOT.glob("fl_lightning/**/*.py"), *ROOT.glob("callbacks/**/*.py")]:
        if path.relative_to(ROOT / path.relative_to(ROOT).parts[0]).as_posix().startswith(UNCHECKED):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or sum(isinstance(line, ast.AnnAssign) for line in node.body) <= 3:
                continue
            decorators = [ast.unparse(each) for each in node.decorator_list]
            if any(each.startswith("dataclass") for each in decorators):
                found += 1
                assert any("kw_only=True" in each for each in decorators), f"{path.name}: {node.name}"
    assert found > 10
