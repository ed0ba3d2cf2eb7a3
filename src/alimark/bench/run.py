"""Runs a recipe: generate, attack, detect, measure; then evaluates what is there.

Every stage turns jobs into records. A job's id is the hash of what makes its record, so jobs whose records are there already
are passed over, whoever wrote them. A text that fails is recorded as failed and ends nothing but itself.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from alimark._util.jsonl import Record
from alimark.attacks import Target, load_attack, seed_for
from alimark.bench.data import DataSet, Item
from alimark.bench.data import load as load_data
from alimark.bench.recipe import Detection, OneAttack, Recipe, Variant, Watermark, attacks, detection_options, variants
from alimark.bench.workspace import Stage, Workspace, digest, scored
from alimark.detection.stats.p_values import RandomKeys
from alimark.embedding.base import Embedder
from alimark.embedding.loading import load_embedder
from alimark.errors import AlimarkError, ContextFull, LLMError
from alimark.generation.api import Generation, GenerationSettings, Prompt, generate_many
from alimark.keys.fitted import Fitted
from alimark.keys.key import DEFAULT_EMBEDDER, SOFT_VERSION, Key
from alimark.llm import load_llm
from alimark.llm.base import LLM, Sampling
from alimark.parameters import parameters_class
from alimark.schemes.api import load
from alimark.schemes.registry import asks_llm, scheme

if TYPE_CHECKING:
    from alimark.scale.generation import Replicas

_SCORES = 1
"""Counts up when detection changes so that scores do: records of older releases are then left alone."""

_ERRORS_IN_A_ROW = 3
_EMBEDDED_TOGETHER = 32  # texts, for batches that are full
_POOLED = ("insert", "copy-paste")  # attacks that take sentences of other texts


class Progress(Protocol):
    """Told what is done; the command line shows it."""

    def stage(self, name: str, total: int, done: int) -> None: ...
    def step(self, count: int = 1) -> None: ...
    def fault(self, message: str) -> None: ...


class Silent:
    def stage(self, name: str, total: int, done: int) -> None: ...
    def step(self, count: int = 1) -> None: ...
    def fault(self, message: str) -> None: ...


@dataclass(frozen=True)
class Job:
    """A record to be made: its id, and what makes it, of which `group` is loaded once for many."""

    id: str
    group: tuple[Any, ...] = field(hash=False)
    content: Any = field(hash=False)


class Models:
    """Models by name, loaded once."""

    def __init__(self) -> None:
        self._llms: dict[str, LLM] = {}
        self._embedders: dict[str, Embedder] = {}
        self._fitted: dict[str, Fitted] = {}

    def fitted(self, path: str) -> Fitted:
        """What a rival learned from text."""
        if path not in self._fitted:
            self._fitted[path] = Fitted.load(path)
        return self._fitted[path]

    def llm(self, name: str, options: dict[str, Any] | None = None) -> LLM:
        which = digest({"name": name, "options": options or {}})
        if which not in self._llms:
            self._llms.clear()  # one at a time: two may not fit
            self._llms[which] = load_llm(name, **(options or {}))
        return self._llms[which]

    def embedder(self, name: str) -> Embedder:
        if name not in self._embedders:
            self._embedders[name] = load_embedder(name)
        return self._embedders[name]


def secret(seed: int, text: str, number: int = 0) -> bytes:
    """A key for each text, the same in every run: an experiment's keys protect nothing."""
    return hashlib.sha256(f"alimark/bench/key/{seed}/{number}/{text}".encode("utf-8", "surrogatepass")).digest()


def key_for(watermark: Watermark, secret_bytes: bytes, models: Models) -> Key:
    public = dict(watermark.key)
    embedder = embedder_for(watermark, models)
    public.pop("embedder", None)
    if "fitted" in public:
        public["fitted"] = models.fitted(str(public["fitted"]))
    return Key.generate(secret=secret_bytes, scheme=watermark.scheme, embedder=embedder, **public)


def _marking(watermark: Watermark) -> dict[str, Any]:
    """What texts hang on: they are written alike under all versions of soft decisions, but not found alike."""
    return {name: value for name, value in watermark.key.items() if name != "soft_version"}


def embedder_for(watermark: Watermark, models: Models) -> Embedder | None:
    """The embedder of a watermark's keys, where they have one."""
    if not parameters_class(watermark.scheme).embeds:
        return None
    return models.embedder(watermark.key.get("embedder", DEFAULT_EMBEDDER))


def settings_for(watermark: Watermark, detection: Detection) -> RandomKeys:
    """What a scheme takes of a recipe's detection: a rival has nothing of AliMark's search."""
    kind = scheme(watermark.scheme).settings
    known = kind.__dataclass_fields__
    options = detection_options(detection)
    settings: RandomKeys = kind(**{name: value for name, value in options.items() if name in known})
    return settings


@dataclass(frozen=True)
class Cell:
    """One watermark on one data set at one point of the grid."""

    variant: Variant
    watermark: Watermark
    data: DataSet = field(hash=False)

    @property
    def recipe(self) -> Recipe:
        return self.variant.recipe

    @cached_property
    def items(self) -> list[Item]:
        """Those that are continued; there may be more human texts."""
        return self.data.items[: self.recipe.data.texts]


class Run:
    """A recipe in a workspace. With several processes `share` is (mine, all): a job goes to one of them by its id."""

    def __init__(
        self,
        recipe: Recipe,
        workspace: Workspace,
        progress: Progress | None = None,
        *,
        share: tuple[int, int] = (0, 1),
        models: Models | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        """`replicas`: of the model that writes, on a cluster; without them it is loaded here."""
        self.replicas = replicas
        self.recipe, self.workspace, self.progress, self.share = recipe, workspace, progress or Silent(), share
        self.models = models or Models()
        self.seconds: dict[str, float] = {}
        self._sets: dict[str, DataSet] = {}

    # What there is to do

    @cached_property
    def cells(self) -> list[Cell]:
        return [
            Cell(variant, watermark, self._set(name, variant.recipe))
            for variant in variants(self.recipe)
            for name in variant.recipe.data.sets
            for watermark in variant.recipe.watermark
        ]

    def _set(self, name: str, recipe: Recipe) -> DataSet:
        settings = recipe.data
        most = None if settings.human_texts is None else max(settings.human_texts, settings.texts)
        which = digest({"name": name, **settings.model_dump()})
        if which not in self._sets:
            self._sets[which] = load_data(name, settings.sentences, human=settings.human, most=most, skip=settings.skip)
        return self._sets[which]

    def generate_job(self, cell: Cell, item: Item, *, marked: bool = True, answer: int = 0) -> Job:
        recipe, options = cell.recipe, dict(cell.watermark.generate)
        if marked:
            options.setdefault("candidates", scheme(cell.watermark.scheme).candidates)
        settings = GenerationSettings(recipe.data.sentences, **options, sampling=Sampling(**recipe.llm.sampling))
        making = {
            "stage": "generate", "prompt": item.prompt, "llm": recipe.llm.name, "settings": settings.to_dict(),
            "seed": recipe.seed, "answer": answer,
            **({"scheme": cell.watermark.scheme, "key": _marking(cell.watermark)} if marked else {}),
        }  # fmt: skip
        group = (
            recipe.llm.name,
            digest(recipe.llm.options),
            digest(settings.to_dict()),
            digest(_marking(cell.watermark)),
            cell.watermark.scheme,
            marked,
        )
        return Job(digest(making), group, (cell, item, settings, marked, answer))

    def attack_job(self, cell: Cell, item: Item, attack: OneAttack, answer: int = 0, again: int = 0) -> Job:
        """`again`: how often the text was attacked so before, each time with other chances."""
        parent = self.generate_job(cell, item, answer=answer).id
        pool = cell.data.name if attack.name in _POOLED else ""
        making = {"stage": "attack", "parent": parent, "attack": attack.name, "settings": attack.settings, "pool": pool,
                  "seed": cell.recipe.seed} | ({"again": again} if again else {})  # fmt: skip
        seed = seed_for(attack.name, cell.recipe.seed, f"{parent}/{again}" if again else parent)
        return Job(digest(making), (attack.name, digest(attack.settings), pool), (cell, item, attack, parent, seed))

    def detect_job(self, cell: Cell, detection: Detection, source: str, secret_text: str, number: int = 0) -> Job:
        """`source`: the record whose text is scored, or "human:" and the text."""
        making = {"stage": "detect", "source": source, "key": _marking(cell.watermark), "scheme": cell.watermark.scheme,
                  "secret": secret_text, "number": number, "seed": cell.recipe.seed,
                  "options": detection.options, "llm": detection.llm, "scores": _SCORES}  # fmt: skip
        version = cell.watermark.key.get("soft_version", SOFT_VERSION)
        if (
            cell.watermark.key.get("decision") == "soft" and version != 1
        ):  # unnamed in records from before there was another
            making["soft_version"] = version
        group = (cell.watermark.scheme, digest(cell.watermark.key), digest(detection.options), detection.llm)
        return Job(digest(making), group, (cell, detection, source, secret_text, number))

    # Stages

    def run(self) -> None:
        """All stages, each over what is not there yet."""
        for name in ("generate", "attack", "detect", "meaning", "quality"):
            self._timed(name, getattr(self, f"run_{name}"))

    def _timed(self, name: str, stage: Callable[[], None]) -> None:
        started = time.perf_counter()
        stage()
        self.seconds[name] = time.perf_counter() - started

    def _open(self, stage: Stage, jobs: Iterable[Job]) -> list[Job]:
        """Jobs of mine without a record."""
        every = {job.id: job for job in jobs}
        done = self.workspace.records(stage, every)
        mine, all_parts = self.share
        left = [job for job in every.values() if job.id not in done and int(job.id, 16) % all_parts == mine]
        self.progress.stage(stage, len(every), len(done))
        return left

    def _write(
        self, stage: Stage, jobs: Sequence[Job], make: Callable[[Sequence[Job]], Iterator[tuple[Job, Record]]]
    ) -> None:
        """Group by group, so that what is heavy is loaded once; every record is on disk as soon as it is made."""
        if not jobs:
            return  # and keeps nobody else from writing
        groups: dict[tuple[Any, ...], list[Job]] = defaultdict(list)
        for job in jobs:
            groups[job.group].append(job)
        with self.workspace.writer(stage) as writer:
            for some in groups.values():
                for job, record in make(some):
                    writer.write({"id": job.id, **record})
                    self.progress.step()

    def run_generate(self) -> None:
        jobs = [self.generate_job(cell, item) for cell in self.cells for item in cell.items]
        jobs += [job for cell in self.cells for job in self.quality_generate_jobs(cell)]
        self._write("generate", self._open("generate", jobs), self._generated)

    def quality_generate_jobs(self, cell: Cell) -> Iterator[Job]:
        """Unmarked texts, and many answers to one prompt."""
        wanted = cell.recipe.quality
        if wanted.oracle and wanted.unmarked:
            for item in cell.items[: wanted.texts]:
                yield self.generate_job(cell, item, marked=False)
        for item in cell.items[: wanted.prompts] if wanted.answers else ():
            for answer in range(wanted.answers):
                yield self.generate_job(cell, item, answer=answer)
                if wanted.unmarked:
                    yield self.generate_job(cell, item, marked=False, answer=answer)

    def _generated(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Record]]:
        cell, _, settings, marked, _ = jobs[0].content
        first = key_for(cell.watermark, bytes(32), self.models)
        prompts = []
        for job in jobs:
            cell, item, _, marked, _ = job.content
            key = key_for(cell.watermark, secret(cell.recipe.seed, item.prompt), self.models)
            prompts.append(Prompt(item.prompt, _seed(job.id), key if marked else None))
        doubtful: list[tuple[Job, LLMError]] = []  # failed, unless it is the model that is gone
        for place, one in self._texts_for(prompts, first if marked else None, cell, settings):
            if isinstance(one, LLMError) and not isinstance(one, ContextFull):
                doubtful.append((jobs[place], one))
                if len(doubtful) == _ERRORS_IN_A_ROW:
                    raise one  # what is left is for another run, these included
                continue
            for job, error in doubtful:
                yield job, self._failed("generate", error)
            doubtful = []
            if isinstance(one, AlimarkError):
                yield jobs[place], self._failed("generate", one)
            else:
                record = one.record(jobs[place].id)
                yield jobs[place], {name: record[name] for name in record if name != "id"}
        if doubtful:
            raise doubtful[0][1]

    def _texts_for(
        self, prompts: Sequence[Prompt], key: Key | None, cell: Cell, settings: GenerationSettings
    ) -> Iterator[tuple[int, Generation | AlimarkError]]:
        """Marked under each prompt's own key, where `key` says of what kind they are; else plain."""
        wanted = cell.recipe.llm
        if self.replicas is not None:
            return self.replicas.write(prompts, key, settings, llm=wanted.name, options=wanted.options)
        llm = self.models.llm(wanted.name, wanted.options)
        if key is None:
            return generate_many(prompts, None, None, llm, settings)
        return load(key, embedder=embedder_for(cell.watermark, self.models)).generate_many(prompts, llm, settings)

    def _failed(self, what: str, error: AlimarkError) -> Record:
        self.progress.fault(f"{what}: {error}")
        return {"failed": True, "error": str(error)}

    def run_attack(self) -> None:
        jobs = [
            self.attack_job(cell, item, attack)
            for cell in self.cells
            for attack in attacks(cell.recipe)
            for item in cell.items
        ]
        self._write("attack", self._open("attack", jobs), self._attacked)

    def _attacked(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Record]]:
        cell, _, wanted, _, _ = jobs[0].content
        texts = self.workspace.records("generate", [job.content[3] for job in jobs])
        sound = []
        for job in jobs:
            parent = texts.get(job.content[3], {})
            if parent.get("text"):
                sound.append((job, parent["text"]))
            elif parent:
                yield job, {"failed": True, "error": "there is no text to attack"}
        settings = dict(wanted.settings)
        if wanted.name in _POOLED:
            # The paper's: sentences of other texts of the data set. They are human, so none brings a mark along.
            settings["pool"] = tuple(cell.data.human)
        attack = load_attack(wanted.name, **settings)
        targets = (Target(text, job.content[4]) for job, text in sound)
        for place, made in attack.run(targets):
            job = sound[place][0]
            record: Record = {"parent_id": job.content[3], "attack": {"name": attack.name, "settings": attack.settings}}
            if made.failed:
                self.progress.fault(f"{wanted.label}: {made.error}")
            record |= {"failed": True, "error": made.error} if made.failed else {"text": made.text}
            yield job, record | {"tries": made.tries, "tokens": made.tokens, "left": made.left}

    def detect_jobs(self) -> Iterator[Job]:
        for cell in self.cells:
            for detection in cell.recipe.detection:
                for item in cell.items:
                    if cell.recipe.clean:
                        yield self.detect_job(cell, detection, self.generate_job(cell, item).id, item.prompt)
                    for attack in attacks(cell.recipe):
                        yield self.detect_job(cell, detection, self.attack_job(cell, item, attack).id, item.prompt)
                yield from (job for _, job in self.human_jobs(cell, detection))

    def human_jobs(self, cell: Cell, detection: Detection) -> Iterator[tuple[int, Job]]:
        """Each human text under fresh keys, with its number among them."""
        for number, text in enumerate(cell.data.human[: cell.recipe.data.human_texts]):
            for fresh in range(cell.recipe.data.human_keys):
                yield number, self.detect_job(cell, detection, f"human:{text}", text, fresh + 1)

    def run_detect(self) -> None:
        self._write("detect", self._open("detect", self.detect_jobs()), self._detected)

    def _detected(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Record]]:
        cell, detection, *_ = jobs[0].content
        settings = settings_for(cell.watermark, detection)
        llm = self.models.llm(detection.llm) if detection.llm else None
        if asks_llm(self._key(jobs[0])):
            llm = self.models.llm(cell.recipe.llm.name, cell.recipe.llm.options)
        embedder = embedder_for(cell.watermark, self.models)
        texts = self._texts([job.content[2] for job in jobs])
        # A text that is not there yet: another process is at it, or the run was stopped; a later run scores it.
        there = [job for job in jobs if job.content[2] in texts]
        with self.workspace.kept_vectors(embedder) if embedder else nullcontext() as vectors:
            for start in range(0, len(there), _EMBEDDED_TOGETHER):
                some = there[start : start + _EMBEDDED_TOGETHER]
                sound = [texts[job.content[2]] for job in some if texts[job.content[2]]]
                if vectors is not None:
                    units = load(self._key(some[0]), embedder=vectors).units(sound, settings)
                    vectors.embed(list(dict.fromkeys(units)))
                for job in some:
                    yield job, self._scored(texts[job.content[2]], job, vectors, settings, llm)

    def _key(self, job: Job) -> Key:
        """That of a job of detection."""
        cell, _, _, secret_text, number = job.content
        return key_for(cell.watermark, secret(cell.recipe.seed, secret_text, number), self.models)

    def _scored(self, text: str, job: Job, embedder: Embedder | None, settings: RandomKeys, llm: LLM | None) -> Record:
        if not text:
            return {"failed": True, "error": "there is no text to score"}
        [answer] = load(self._key(job), embedder=embedder).detect_batch([text], settings, llm=llm)
        if isinstance(answer, AlimarkError):
            self.progress.fault(f"detect: {answer}")
        return scored(answer)

    def _texts(self, sources: Sequence[str]) -> dict[str, str]:
        """Of each source its text; empty where making it failed."""
        found = {source: source[6:] for source in sources if source.startswith("human:")}
        for stage in ("generate", "attack"):
            for own, record in self.workspace.records(stage, sources).items():
                found[own] = record.get("text", "")
        return found

    def run_meaning(self) -> None:
        """How close attacked texts are to what they were."""
        if not self.recipe.meaning:
            return
        jobs = []
        for cell in self.cells:
            for attack in attacks(cell.recipe):
                for item in cell.items:
                    parent, own = self.generate_job(cell, item).id, self.attack_job(cell, item, attack).id
                    jobs.append(self.meaning_job(parent, own))
        self._write("meaning", self._open("meaning", jobs), self._meant)

    def meaning_job(self, parent: str, own: str) -> Job:
        making = {"stage": "meaning", "of": [parent, own], "embedder": self.recipe.meaning}
        return Job(digest(making), (self.recipe.meaning,), (parent, own))

    def _meant(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Record]]:
        embedder = self.models.embedder(self.recipe.meaning)
        texts = self._texts([own for job in jobs for own in job.content])
        vectors: dict[str, Any] = {}
        for job in jobs:
            pair = [texts.get(own, "") for own in job.content]
            if not all(pair):
                yield job, {"failed": True, "error": "there is no text"}
                continue
            for text in pair:
                if text not in vectors:
                    vectors[text] = embedder.embed([text])[0]
            yield job, {"cosine": float(vectors[pair[0]] @ vectors[pair[1]])}

    def run_quality(self) -> None:
        """Perplexity under the oracle, of marked, unmarked and human texts."""
        if not self.recipe.quality.oracle:
            return
        jobs = [job for cell in self.cells for _, _, job in self.quality_jobs(cell)]
        self._write("quality", self._open("quality", jobs), self._read)

    def quality_jobs(self, cell: Cell) -> Iterator[tuple[str, str, Job]]:
        """What is read (marked, unmarked, human), whose text it is, and the job."""
        wanted = cell.recipe.quality
        for item in cell.items[: wanted.texts] if wanted.oracle else ():
            sources = {cell.watermark.label: self.generate_job(cell, item).id, "human": f"human:{item.human}"}
            if wanted.unmarked:
                sources["unmarked"] = self.generate_job(cell, item, marked=False).id
            for kind, source in sources.items():
                yield kind, source, self.reading_job(cell, item, source)

    def reading_job(self, cell: Cell, item: Item, source: str) -> Job:
        """The perplexity of a text behind its prompt."""
        oracle = cell.recipe.quality.oracle
        making = {"stage": "quality", "source": source, "prompt": item.prompt, "oracle": oracle}
        return Job(digest(making), (oracle,), (item.prompt, source))

    def _read(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Record]]:
        from alimark.bench.quality import Oracle, distinct, repetition

        texts = self._texts([job.content[1] for job in jobs])
        oracle = Oracle(self.recipe.quality.oracle)
        for start in range(0, len(jobs), 8):
            some = jobs[start : start + 8]
            sound = [job for job in some if texts.get(job.content[1])]
            pairs = [(job.content[0], texts[job.content[1]]) for job in sound]
            found = dict(zip((job.id for job in sound), oracle.perplexities(pairs), strict=True)) if pairs else {}
            for job in some:
                text = texts.get(job.content[1], "")
                if math.isfinite(found.get(job.id, math.nan)):
                    yield job, {"perplexity": found[job.id], "distinct": distinct(text), "repetition": repetition(text)}
                else:
                    yield job, {"failed": True, "error": "there is no text to read"}


def _seed(own: str) -> int:
    return int(own[:12], 16)
