"""Write the config's schema and README from the recipes of the stages.

python workflow/scripts/generate_schema.py [DIRECTORY]

writes workflow/schemas/config.schema.yaml and config/README.md, below DIRECTORY if given.
"""

import sys
from pathlib import Path

import yaml

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "workflow"))

from scripts.schema.config import config_schema  # noqa: E402
from scripts.schema.readme import readme  # noqa: E402


def main(directory: Path | str = HOME) -> None:
    """Write both files below `directory`."""
    schema = config_schema()
    text = "# Made by `python workflow/scripts/generate_schema.py` from the stages' recipes.\n"
    text += yaml.safe_dump(schema, sort_keys=False, width=120, allow_unicode=True)
    for path, content in (("workflow/schemas/config.schema.yaml", text), ("config/README.md", readme(schema))):
        Path(directory, path).parent.mkdir(parents=True, exist_ok=True)
        Path(directory, path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
