"""Runs a recipe: generate, attack, detect, and measure quality.

Each stage turns jobs into records. A job whose record exists is skipped. A text that fails is recorded as failed, and the run
goes on with the next one.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from alimark.core._util.jsonl import Record
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.embedding.base import Embedder
from alimark.core.generation.api import Generation, GenerationSettings, Prompt, generate_many
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.schemes.api import load
from alimark.core.schemes.registry import asks_llm
from alimark.errors import AlimarkError, ContextFull, LLMError
from alimark.lab.attacks import Target, load_attack
from alimark.lab.bench import RunProgress
from alimark.lab.bench.jobs import (
    HUMAN,
    POOLED_ATTACKS,
    Cell,
    Job,
    Plan,
    TextToAttack,
    TextToRead,
    TextToScore,
    TextToWrite,
)
from alimark.lab.bench.models import Models, embedder_for, key_for, secret, settings_for
from alimark.lab.bench.recipe import Recipe
from alimark.lab.bench.workspace import STAGES, Stage, Workspace

if TYPE_CHECKING:
    from alimark.audit.replicas import Replicas

_ERRORS_IN_A_ROW = 3
_TEXTS_PER_EMBEDDING_BATCH = 32

Content = TypeVar("Content")


class Run(Plan):
    """A recipe in a workspace.

    `replicas` are copies of the language model on a cluster; without them the model is loaded here.
    """

    def __init__(
        self,
        recipe: Recipe,
        workspace: Workspace,
        progress: RunProgress | None = None,
        *,
        models: Models | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        super().__init__(recipe)
        self.workspace, self.progress = workspace, progress or RunProgress()
        self.models = models or Models()
        self.models.folder, self.models.device = workspace.folder, recipe.embedder_device or None
        self.replicas = replicas
        self.seconds: dict[str, float] = {}

    def run(self) -> None:
        """Learn what the schemes need, then run all stages, each for the records that do not exist yet."""
        steps: dict[str, Callable[[], None]] = {stage: partial(self.run_stage, stage) for stage in STAGES}
        for name, step in {"fit": self.fit, **steps}.items():
            started = time.perf_counter()
            step()
            self.seconds[name] = time.perf_counter() - started

    def fit(self) -> None:
        """Learn from text what the keys of some schemes need, where the file does not exist yet."""
        missing = {name: lesson for name, lesson in self.lessons.items() if not self.models.learned_file(name).exists()}
        if missing:
            self.progress.stage("fit", len(self.lessons), len(self.lessons) - len(missing))
        for name, lesson in missing.items():
            fitted = lesson.learn(self.models)
            self.models.learned_file(name).parent.mkdir(exist_ok=True)
            fitted.save(self.models.learned_file(name))
            self.progress.step()

    def run_stage(self, stage: Stage) -> None:
        """Make the missing records of one stage."""
        if stage == "generate":
            self._make(stage, self.generate_jobs(), self._generated)
        elif stage == "attack":
            steps = [step for job in self.attack_jobs() for step in job.chain]
            for length in sorted({len(step.chain) for step in steps}):  # the first steps of all chains first
                self._make(stage, [step for step in steps if len(step.chain) == length], self._attacked)
        elif stage == "detect":
            self._make(stage, self.detect_jobs(), self._detected)
        else:
            self._make(stage, self.reading_jobs(), self._read)

    def is_finished(self, stage: Stage) -> bool:
        """Whether all records of a stage exist."""
        jobs: dict[Stage, Callable[[], Iterable[Job[object]]]] = {
            "generate": self.generate_jobs, "attack": self.attack_jobs, "detect": self.detect_jobs,
            "quality": self.reading_jobs,
        }  # fmt: skip
        ids = {job.id for job in jobs[stage]()}
        return len(self.workspace.records(stage, ids)) == len(ids)

    def _make(
        self,
        stage: Stage,
        jobs: Iterable[Job[Content]],
        make: Callable[[Sequence[Job[Content]]], Iterator[tuple[Job[Content], Record]]],
    ) -> None:
        """Make the missing records, group by group, so that each model is loaded once; write each record at once."""
        if not (by_id := {job.id: job for job in jobs}):
            return
        done = self.workspace.records(stage, by_id)
        self.progress.stage(stage, len(by_id), len(done))
        groups: dict[tuple[object, ...], list[Job[Content]]] = defaultdict(list)
        for job in by_id.values():
            if job.id not in done:
                groups[job.group].append(job)
        if not groups:
            return  # without opening the file, which locks it
        with self.workspace.writer(stage) as writer:
            for group in groups.values():
                for job, record in make(group):
                    writer.write({**record, "id": job.id})
                    self.progress.step()

    def texts(self, sources: Sequence[str]) -> dict[str, str]:
        """The text of each source; empty if making it failed, absent if it does not exist yet."""
        texts = {source: source.removeprefix(HUMAN) for source in sources if source.startswith(HUMAN)}
        for stage in ("generate", "attack"):
            for record_id, record in self.workspace.records(stage, sources).items():
                texts[record_id] = record.get("text", "")
        return texts

    def _failed(self, what: str, error: AlimarkError) -> Record:
        self.progress.fault(f"{what}: {error}")
        return {"failed": True, "error": str(error)}

    # Generation

    def _generated(self, jobs: Sequence[Job[TextToWrite]]) -> Iterator[tuple[Job[TextToWrite], Record]]:
        cell, _, settings, marked, _ = jobs[0].content
        first_key = key_for(cell.watermark, bytes(32), self.models) if marked else None
        prompts = []
        for job in jobs:
            cell, item = job.content.cell, job.content.item
            key = key_for(cell.watermark, secret(cell.recipe.seed, item.prompt), self.models)
            prompts.append(Prompt(item.prompt, int(job.id[:12], 16), key if marked else None))
        # Errors are kept back until another text succeeds: several in a row mean that the model is unreachable.
        pending: list[tuple[Job[TextToWrite], LLMError]] = []
        for place, answer in self._write_texts(prompts, first_key, cell, settings):
            if isinstance(answer, LLMError) and not isinstance(answer, ContextFull):
                pending.append((jobs[place], answer))
                if len(pending) == _ERRORS_IN_A_ROW:
                    raise answer  # a later run tries these texts again
                continue
            for job, error in pending:
                yield job, self._failed("generate", error)
            pending = []
            if isinstance(answer, AlimarkError):
                yield jobs[place], self._failed("generate", answer)
            else:
                yield jobs[place], answer.record(jobs[place].id)
        if pending:
            raise pending[0][1]

    def _write_texts(
        self, prompts: Sequence[Prompt], key: Key | None, cell: Cell, settings: GenerationSettings
    ) -> Iterator[tuple[int, Generation | AlimarkError]]:
        """Texts marked under the key of each prompt; `key` names scheme and parameters. Without it, unmarked texts."""
        wanted = cell.recipe.llm
        if self.replicas is not None:
            return self.replicas.write(
                prompts, key, settings, llm=wanted.name, options=wanted.options, device=self.models.device
            )
        llm = self.models.llm(wanted.name, wanted.options)
        if key is None:
            return generate_many(prompts, None, None, llm, settings)
        return load(key, embedder=embedder_for(cell.watermark, self.models)).generate_many(prompts, llm, settings)

    # Attacks

    def _attacked(self, jobs: Sequence[Job[TextToAttack]]) -> Iterator[tuple[Job[TextToAttack], Record]]:
        cell, _, wanted, *_ = jobs[0].content
        texts = self.texts([job.content.parent for job in jobs])
        sound = []
        for job in jobs:
            text = texts.get(job.content.parent)
            if text:
                sound.append((job, text))
            elif text is not None:
                yield job, {"failed": True, "error": "there is no text to attack"}
        settings = dict(wanted.settings)
        if wanted.name in POOLED_ATTACKS:
            # As in the paper: sentences of other texts of the data set. They are human and therefore carry no mark.
            settings["pool"] = tuple(cell.data.human)
        attack = load_attack(wanted.name, **settings)
        targets = (Target(text, job.content.seed) for job, text in sound)
        for place, result in attack.run(targets):
            job = sound[place][0]
            parent = job.content.parent
            record: Record = {} if parent.startswith(HUMAN) else {"parent_id": parent}
            record |= {"attack": {"name": attack.name, "settings": attack.settings}}
            if result.failed:
                self.progress.fault(f"{wanted.label}: {result.error}")
            record |= {"failed": True, "error": result.error} if result.failed else {"text": result.text}
            yield job, record | {"tries": result.tries, "tokens": result.tokens, "left": result.left,
                                 "rejected": len(result.rejected)}  # fmt: skip

    # Detection

    def _detected(self, jobs: Sequence[Job[TextToScore]]) -> Iterator[tuple[Job[TextToScore], Record]]:
        cell, detection, *_ = jobs[0].content
        settings = settings_for(cell.watermark, detection)
        llm = self.models.llm(detection.llm) if detection.llm else None
        if asks_llm(self._key(jobs[0])):
            llm = self.models.llm(cell.recipe.llm.name, cell.recipe.llm.options)
        embedder = embedder_for(cell.watermark, self.models)
        texts = self.texts([job.content.source for job in jobs])
        # A text may not exist yet, because a run was stopped. A later run scores it.
        ready = [job for job in jobs if job.content.source in texts]
        with self.workspace.kept_vectors(embedder) if embedder else nullcontext() as vectors:
            for start in range(0, len(ready), _TEXTS_PER_EMBEDDING_BATCH):
                batch = ready[start : start + _TEXTS_PER_EMBEDDING_BATCH]
                sound = [text for job in batch if (text := texts[job.content.source])]
                if vectors is not None:  # the units of the whole batch at once, so that embedding batches are full
                    units = load(self._key(batch[0]), embedder=vectors).units(sound, settings)
                    vectors.embed(list(dict.fromkeys(units)))
                for job in batch:
                    yield job, self._scored(texts[job.content.source], job, vectors, settings, llm)

    def _key(self, job: Job[TextToScore]) -> Key:
        cell, _, _, secret_text, number = job.content
        return key_for(cell.watermark, secret(cell.recipe.seed, secret_text, number), self.models)

    def _scored(
        self, text: str, job: Job[TextToScore], embedder: Embedder | None, settings: RandomKeys, llm: LLM | None
    ) -> Record:
        if not text:
            return {"failed": True, "error": "there is no text to score"}
        [answer] = load(self._key(job), embedder=embedder).detect_batch([text], settings, llm=llm)
        if isinstance(answer, AlimarkError):
            return self._failed("detect", answer)
        record: Record = {"score": answer.score, "z": answer.z, "raw": answer.raw, "p_value": answer.p_value,
                          "sentences": len(answer.sentences)}  # fmt: skip
        if isinstance(answer, AlignedDetection) and answer.payload:
            record["payload"] = answer.payload.record()
        return record

    # Quality

    def _read(self, jobs: Sequence[Job[TextToRead]]) -> Iterator[tuple[Job[TextToRead], Record]]:
        from alimark.lab.bench.quality import Oracle, distinct, repetition

        texts = self.texts([job.content.source for job in jobs])
        oracle = Oracle(self.recipe.quality.oracle)
        for job in jobs:
            text = texts.get(job.content.source, "")
            perplexity = oracle.perplexity(job.content.prompt, text)
            if math.isfinite(perplexity):
                yield job, {"perplexity": perplexity, "distinct": distinct(text), "repetition": repetition(text)}
            else:
                yield job, {"failed": True, "error": "there is no text to read"}
