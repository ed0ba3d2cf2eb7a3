"""Records of attacked texts: one JSON object for each text, with all that is needed to repeat the attack."""

from __future__ import annotations

from pathlib import Path

from alimark.core._util.jsonl import Record, read_jsonl
from alimark.errors import RecordError
from alimark.lab.attacks.base import Attack, Attacked, seed_for

_KEPT = ("prompt", "scheme", "key_id")
"""Fields that the record of an attack takes over from the record of the text."""


def attacked_id(attack: Attack, record_id: str) -> str:
    """The id of an attacked text: that of the text, the name of the attack, and its rate where it has one."""
    rate = attack.settings.get("rate")
    label = attack.name if rate is None else f"{attack.name}@{rate:g}"
    return f"{record_id}/{label}"


def attack_record(attack: Attack, source: Record, record_id: str, seed: int, attacked: Attacked) -> Record:
    """The record of an attacked text: the new text or the error, the original, and the settings and seed of the attack."""
    record: Record = {"id": attacked_id(attack, record_id), "parent_id": record_id}
    record |= {name: source[name] for name in _KEPT if name in source}
    record |= {"text": attacked.text} if not attacked.failed else {"failed": True, "error": attacked.error}
    record |= {"original": source["text"], "attack": _description(attack), "seed": seed}
    if attack.by_model:
        record["cost"] = {"tries": attacked.tries, "tokens": attacked.tokens}
    if attacked.rejected:
        record["rejected"] = list(attacked.rejected)
    if attacked.left:
        record["left"] = attacked.left
    return record


def check_resumable(attack: Attack, output: Path, seed: int) -> None:
    """Raises RecordError where an output file that is to be continued holds records of other settings or another seed."""
    if not output.exists():
        return
    for line, record in read_jsonl(output):
        if isinstance(record, RecordError) or not str(record.get("id", "")).endswith(attacked_id(attack, "")):
            continue
        same = record.get("attack") == _description(attack)
        if not same or record.get("seed") != seed_for(attack.name, seed, str(record.get("parent_id"))):
            raise RecordError(
                f"{output}:{line} was made by {attack.name} with other settings, pool or seed; choose another output file"
            )


def _description(attack: Attack) -> Record:
    return {"name": attack.name, "settings": attack.settings}
