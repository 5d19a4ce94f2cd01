"""The page of documentation of a config class, made from its fields and the table of renames."""

from __future__ import annotations

from policies.config import RESUMABLE_KEYS, AlgorithmConfig
from policies.config_fields import ConfigField, config_fields
from policies.config_renames import RenamedKey, renamed_keys, show


def config_reference(config_class: type[AlgorithmConfig]) -> str:
    """Markdown: every setting with values, default and meaning, then RLlib's names.

    The learner's own settings come first, then the shared ones and the network's (`model.*`).
    """
    name = config_class.__name__
    fields = list(config_fields(config_class).values())
    shared = [field for field in fields if field.owner is AlgorithmConfig]
    nested = [field for field in fields if "." in field.key]
    own = [field for field in fields if field not in shared and field not in nested]
    parts = [
        f"# Settings of {name}\n",
        "Give them in a YAML file (`--config run.yaml`) or one by one "
        "(`--set gamma=0.99`, `--set model.hidden=[64,64]`). `--print_config` shows the result.\n",
    ]
    for title, group in [(name, own), ("Shared by all learners", shared), ("Network", nested)]:
        if group:
            parts.append(f"## {title}\n\n{_field_table(group)}")
    parts.append(
        "A resumed run (`--resume`) may change only "
        + ", ".join(f"`{key}`" for key in sorted(RESUMABLE_KEYS))
        + ".\n"
    )
    known = {field.key for field in fields}
    rows = [row for row in renamed_keys().values() if row.new is None or row.new in known]
    parts.append(f"## RLlib's names\n\n{_rename_table(rows)}")
    return "\n".join(parts)


def _field_table(fields: list[ConfigField]) -> str:
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for field in fields:
        lines.append(
            f"| `{field.key}` | {_cell(field.expected)} | `{field.default}` "
            f"| {_cell(field.description)} |"
        )
    return "\n".join(lines) + "\n"


def _rename_table(rows: list[RenamedKey]) -> str:
    lines = ["| RLlib's key | here |", "| --- | --- |"]
    for row in rows:
        said = []
        if row.new is not None:
            said.append(f"`{row.new}`")
        said += [f"`{show(theirs)}` becomes `{show(ours)}`" for theirs, ours in row.values]
        if row.ignored:
            verb = "is" if len(row.ignored) == 1 else "are"
            ignored = " and ".join(f"`{show(item)}`" for item in row.ignored)
            said.append(f"{ignored} {verb} ignored")
        if row.new is None or row.only_values:
            said.append(f"other values are refused: {row.reason}" if said else row.reason)
        lines.append(f"| `{row.old}` | {_cell('; '.join(said))} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Prints the page of every learner's settings: `make docs` keeps it in docs/config.md."""
    from policies.learners.learner import learner_named

    print(config_reference(learner_named("ppo").CONFIG), end="")


if __name__ == "__main__":
    main()
