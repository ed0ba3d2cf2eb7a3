"""The base classes of attacks, and the types of what goes in and what comes out.

An attack is a frozen dataclass. Its fields are its settings: records keep them, and the command line offers them as options.
An attack sees texts only, never keys. It loads models and other data when it gets its first text.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from alimark.core._util.jsonl import Record, read_jsonl
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, Piece, join, pieces, splitter
from alimark.core.llm.base import LLM
from alimark.errors import AttackError, RecordError
from alimark.lab.attacks.checks import joined_flaw, sentence_flaw

PAPER_PRESET = "paper"  # the name of the preset with which an attack does what the paper's public code does

T = TypeVar("T")
SettingValue: TypeAlias = "str | float | bool | Sequence[str] | LLM"
"""The values that settings of attacks have: numbers, texts, switches, a pool of texts (`pool`), a loaded model (`engine`)."""


def setting(default: T, help_text: str) -> T:
    """Declares a field of an attack that is a setting, with what the help of the command line says about it."""
    return field(default=default, metadata={"help": help_text})


# Settings that several attacks have


def batch_setting(size: int, of: str = "Sentences") -> int:
    return setting(size, f"{of} in a batch.")


def device_setting() -> str:
    return setting("", "cpu or cuda. The default is the GPU where there is one.")


def max_tokens_setting(count: int, help_text: str) -> int:
    return setting(count, f"The maximum number of tokens {help_text}.")


def top_p_setting(share: float) -> float:
    return setting(share, "Nucleus sampling: the probability that the sampled tokens have together.")


def preset_setting() -> str:
    return setting(
        "", "paper: do as the paper's public code does (docs/attacks.md), and use its settings where none is given."
    )


@dataclass(frozen=True, slots=True)
class Target:
    """A text to attack, with the seed of the random choices that an attack makes for it."""

    text: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Attacked:
    """The result of an attack on a text.

    Attributes:
        text: The rewritten text, empty where the attack failed.
        error: Why the attack failed, empty where it did not.
        tries: How often a model was asked for the text.
        rejected: For each answer of a model that was not used: the reason, a colon, and the start of the answer; or "empty".
        left: The number of sentences that were not rewritten because no answer for them was usable.
        tokens: The number of tokens that a model generated.
    """

    text: str
    error: str = ""
    tries: int = 1
    rejected: tuple[str, ...] = ()
    left: int = 0
    tokens: int = 0

    @property
    def failed(self) -> bool:
        """Whether there is no rewritten text."""
        return bool(self.error)


class Attack(ABC):
    """Base class of attacks: rewrites texts as someone would who wants to remove a watermark.

    A subclass is a frozen dataclass with a `name`, with fields declared by `setting`, and with a method `run`. `TextAttack` and
    `SentenceAttack` define `run` for attacks without a model and for models that rewrite single sentences.

    Example:
        >>> from alimark.lab.attacks import Target, load_attack
        >>> attack = load_attack("truncate", rate=0.5)
        >>> attack.settings
        {'rate': 0.5, 'side': 'end'}
        >>> attack("The first sentence is here. The second one is here.", seed=7)
        'The first sentence is here.'
        >>> for index, attacked in attack.run([Target("The sun rose. The wind fell."), Target("")]):
        ...     print(index, attacked.text or attacked.error)
        0 The sun rose.
        1 the text holds no sentence
    """

    name: ClassVar[str]
    """The name of the attack, as `load_attack` and `alimark attack` know it."""
    by_model: ClassVar[bool] = False
    """Whether a model writes the text. Such an attack takes longer, and may fail for some texts."""
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """The settings that a preset changes, by the name of the preset."""
    preset: str = ""
    """The name of the preset, empty without one. An attack with presets has a setting of this name."""

    @classmethod
    def of(cls, **settings: object) -> Self:
        """Makes the attack from the settings that are given, those of the preset and the defaults, in this order of precedence.

        Raises:
            AttackError: The attack has no preset of this name, or a value is not possible.
        """
        preset = str(settings.get("preset", ""))
        if preset and preset not in cls.presets:
            known = ", ".join(cls.presets) or "none"
            raise AttackError(f"{cls.name} has no preset {preset!r}; there is: {known}")
        chosen: dict[str, Any] = {**cls.presets.get(preset, {}), **settings}
        return cls(**chosen)

    @classmethod
    def options(cls) -> dict[str, Field[SettingValue]]:
        """The fields that are settings, by name."""
        return {option.name: option for option in fields(cls) if "help" in option.metadata}  # type: ignore[arg-type]

    @property
    def follows_public_code(self) -> bool:
        """Whether the attack does what the paper's public code does: no answer is checked, and every answer is used."""
        return self.preset == PAPER_PRESET

    @property
    def settings(self) -> Record:
        """The settings as a record keeps them: strings, numbers and booleans by name."""
        return {name: getattr(self, name) for name in self.options()}

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that the attack will load, so that they can be fetched in advance."""
        return ()

    @property
    def llms(self) -> tuple[str, ...]:
        """Those models that are language models, by the names that `alimark.load_llm` takes."""
        return ()

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        """The optional libraries that the attack needs, each with the extra that installs it."""
        return ()

    @abstractmethod
    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        """Yields the index of each text in `targets` and its result, in the order in which texts are finished.

        The targets are read one after the other, as the attack needs them.
        """

    def __call__(self, text: str, seed: int = 0) -> str:
        """Attacks one text and returns the result; raises AttackError, for example because the text has too few sentences."""
        [(_, attacked)] = self.run([Target(text, seed)])
        if attacked.failed:
            raise AttackError(f"{self.name} failed: {attacked.error}")
        return attacked.text


def seed_for(attack: str, seed: int, record_id: str) -> int:
    """The seed of a text in a run over many, which does not depend on the other texts or on their order."""
    return hashed_seed(f"alimark/attack/{attack}/{seed}/{record_id}")


def hashed_seed(label: str) -> int:
    """The seed that follows from a label."""
    content = label.encode("utf-8", "surrogatepass")  # JSON can hold half a pair
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big")


class TextAttack(Attack):
    """Base class of attacks without a model: the new text is a function of the text and of random numbers."""

    @abstractmethod
    def rewrite(self, text: str, random: Random) -> str:
        """The rewritten text; raises AttackError where the attack is not possible on this text."""

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        for index, target in enumerate(targets):
            try:
                attacked = Attacked(self.rewrite(target.text, Random(target.seed)))
            except AttackError as error:
                attacked = Attacked("", str(error))
            yield index, attacked


class SentenceAttack(Attack):
    """Base class of attacks by a model that rewrites sentence by sentence. Layout and code blocks do not change.

    A sentence without an answer that passes the checks is not changed, and `Attacked.left` counts it. Where this holds for
    more than `_MAX_SHARE_LEFT` of the sentences of a text, the attack on that text has failed. With the paper's preset nothing
    is checked: the first answer replaces the sentence, and a sentence with an empty answer is left out and named in `rejected`.
    """

    by_model = True
    batch: int
    """The number of sentences in a batch; they may come from several texts."""

    @abstractmethod
    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        """The model's rewrites of each sentence, the best first."""

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        sentence_splitter = splitter(DEFAULT_SPLITTER)
        waiting: list[tuple[int, list[Piece], str]] = []
        for index, target in enumerate(targets):
            waiting.append((index, *pieces(target.text, sentence_splitter)))
            if sum(len(sentences) for _, sentences, _ in waiting) >= self.batch:
                yield from self._finish(waiting)
                waiting = []
        yield from self._finish(waiting)

    def _finish(self, waiting: Sequence[tuple[int, list[Piece], str]]) -> Iterator[tuple[int, Attacked]]:
        # Sentences of similar length share a batch, since a batch is padded to its longest sentence.
        bodies = sorted(dict.fromkeys(piece.body for _, sentences, _ in waiting for piece in sentences), key=len)
        answers: dict[str, list[str]] = {}
        for start in range(0, len(bodies), self.batch):
            batch = bodies[start : start + self.batch]
            answers |= zip(batch, self.answers(batch), strict=True)
        put_together = _rewritten_unchecked if self.follows_public_code else _rewritten
        for index, sentences, tail in waiting:
            none = Attacked("", "the text holds no sentence")
            yield index, put_together(sentences, tail, answers) if sentences else none


_MAX_SHARE_LEFT = 0.25


def _rewritten(sentences: Sequence[Piece], tail: str, answers: dict[str, list[str]]) -> Attacked:
    """The text with the first usable answer in the place of each sentence."""
    rejected: list[str] = []
    bodies: list[str | None] = []
    for piece in sentences:
        for answer in answers[piece.body]:
            if flaw := sentence_flaw(answer, piece.body):
                rejected.append(f"{flaw}: {answer[:80]}")
            else:
                bodies.append(answer.strip())
                break
        else:
            bodies.append(None)
    return replace_sentences(sentences, tail, bodies, rejected)


def _rewritten_unchecked(sentences: Sequence[Piece], tail: str, answers: dict[str, list[str]]) -> Attacked:
    """The text with the first answer in the place of each sentence, whatever it says.

    A sentence with an empty answer is left out, and `rejected` has "empty" for it.
    """
    bodies = [next(iter(answers[piece.body]), "").strip() for piece in sentences]
    lost = {i for i, body in enumerate(bodies) if not body}
    rejected = ("empty",) * len(lost)
    if len(lost) == len(sentences):
        return Attacked("", "empty", rejected=rejected)
    rewritten = [Piece(piece.lead, body) for piece, body in zip(sentences, bodies, strict=True)]
    return Attacked(join_without(rewritten, tail, lost), rejected=rejected)


def replace_sentences(
    sentences: Sequence[Piece], tail: str, bodies: Sequence[str | None], rejected: Sequence[str]
) -> Attacked:
    """Puts rewritten sentences in the place of the original ones; a sentence whose body is None stays as it is.

    The attack has failed where too many sentences stay, or the sentences together are no rewrite of the text.
    """
    left = sum(body is None for body in bodies)
    if left > _MAX_SHARE_LEFT * len(sentences):
        return Attacked("", f"no usable answer for {left} of {len(sentences)} sentences", 1, tuple(rejected), left)
    text = join([Piece(piece.lead, body or piece.body) for piece, body in zip(sentences, bodies, strict=True)], tail)
    if flaw := joined_flaw(text, join(sentences, tail)):
        return Attacked("", flaw, 1, (*rejected, f"{flaw}: {text[:80]}"), left)
    return Attacked(text, "", 1, tuple(rejected), left)


def join_without(sentences: Sequence[Piece], tail: str, left_out: AbstractSet[int]) -> str:
    """The text without some sentences. Code blocks and paragraph breaks stay; list markers go with their sentences."""
    result: list[Piece] = []
    code: list[str] = []  # what stood before sentences that are left out, and is not in the result yet
    blank = ""
    for i, piece in enumerate(sentences):
        new_code, new_blank, marker = _lead_parts(piece.lead)
        code.append(new_code)
        blank = new_blank if new_code or new_blank.count("\n") >= blank.count("\n") else blank
        if i not in left_out:
            lead = "".join(code) + blank + marker
            result.append(Piece(lead if result else lead.lstrip(), piece.body))
            code, blank = [], ""
    return join(result, "".join(code) + tail)


def _lead_parts(lead: str) -> tuple[str, str, str]:
    """What precedes a sentence, in three parts: code blocks, white space, and the marker of a list item or heading."""
    fence = max(lead.rfind("```"), lead.rfind("~~~"))
    end = lead.find("\n", fence) if fence >= 0 else 0
    code, rest = lead[:end], lead[end:]
    marker = rest.lstrip()
    return code, rest[: len(rest) - len(marker)], marker


# Records of attacked texts: one JSON object for each, with all that is needed to repeat the attack.

_KEPT = ("prompt", "scheme", "key_id")  # fields that the record of an attack takes over from the record of the text


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
    record |= {"original": source["text"], "attack": {"name": attack.name, "settings": attack.settings}, "seed": seed}
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
        same = record.get("attack") == {"name": attack.name, "settings": attack.settings}
        if not same or record.get("seed") != seed_for(attack.name, seed, str(record.get("parent_id"))):
            raise RecordError(
                f"{output}:{line} was made by {attack.name} with other settings, pool or seed; choose another output file"
            )
