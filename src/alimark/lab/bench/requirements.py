"""Checks before a run that everything it needs is there, so that all that is missing is known at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec

from alimark.core.embedding.loading import check_embedder, split_prefix
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import DEFAULT_EMBEDDER, Key
from alimark.core.llm import check_llm, may_give_next_tokens, plain_name
from alimark.core.models import store
from alimark.core.parameters import parameters_class
from alimark.core.schemes.registry import scheme
from alimark.errors import AlimarkError, KeyMismatch, LLMError, MissingExtra
from alimark.lab.attacks import load_attack
from alimark.lab.bench.jobs import Plan
from alimark.lab.bench.models import diversity_embedder, embedder_name, learns
from alimark.lab.bench.recipe import OneAttack, Recipe, WatermarkRow, attacks, token_level, variants
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import STAGES
from alimark.lab.rivals.tokens import load_tokenizer

_TORCH = (("torch", "transformers"), ("transformers", "transformers"))


def needs(recipe: Recipe, run: Run | None = None) -> Needs:
    """Check everything that a run of a recipe needs; with `run`, only what is left to do: not models whose records exist.

    No weights are downloaded. Models of the store that are not on this machine are not missing, since a run fetches them.
    """
    needed = Needs(Plan(recipe))
    points = [variant.recipe for variant in variants(recipe)]
    for point in points:
        for name in point.data.sets:
            needed.check(f"data set {name}", needed.plan.data_set, name, point)
    if run is not None and not needed.problems:
        needed.narrow(run)
    for point in points:
        needed.named_models(point)
        for watermark in point.watermark if needed.stages & {"generate", "detect"} else ():
            needed.watermark(watermark, point)
        for attack in attacks(point) if "attack" in needed.stages else ():
            needed.attack(attack)
    return needed


def check(recipe: Recipe, run: Run | None = None) -> Needs:
    """As `needs`; raises an error that lists everything that is missing."""
    needed = needs(recipe, run)
    if needed.problems:
        raise AlimarkError(
            "\n- ".join(["a run needs what is missing here:", *needed.problems])
            + "\nModels, attacks and data can be replaced: --set PATH=VALUE, --profile NAME (docs/bench.md)."
        )
    return needed


@dataclass
class Needs:
    """What a recipe needs. Each thing is checked once, whichever parts of the recipe need it."""

    plan: Plan
    stages: set[str] = field(default_factory=lambda: set(STAGES))  # the stages that have something left to do
    finished: set[str] = field(default_factory=set)  # labels of the attacks that have nothing left to do
    models: set[str] = field(default_factory=set)  # the models of the store that a run loads
    _results: dict[str, str] = field(default_factory=dict)
    """What is wrong with each thing that was checked; empty if it is there."""

    @property
    def problems(self) -> list[str]:
        """A sentence for each thing that is missing, with the reason and what to do about it."""
        return [f"{thing}: {problem}" for thing, problem in self._results.items() if problem]

    def check(self, thing: str, test: Callable[..., object], *arguments: object) -> bool:
        """Call a test that raises an error if the thing is not there. Returns whether it is there."""
        names = [split_prefix(plain_name(name))[0] for name in arguments if isinstance(name, str)]
        self.models |= {name for name in names if name in store.names()}
        if thing not in self._results:
            try:
                test(*arguments)
                self._results[thing] = ""
            except AlimarkError as error:
                self._results[thing] = str(error)
        return not self._results[thing]

    def libraries(self, user: str, libraries: Iterable[tuple[str, str]]) -> None:
        """Check optional libraries, each given with the extra that installs it."""
        for library, extra in libraries:
            self.check(f"library {library}, for {user}", _need, library, extra)

    def llm(self, name: str) -> bool:
        return self.check(f"language model {name}", check_llm, name)

    def narrow(self, run: Run) -> None:
        """Leave out the stages and attacks whose records all exist."""
        self.stages = {stage for stage in STAGES if not run.is_finished(stage)}
        jobs_of_attack: dict[str, set[str]] = {}
        for step in (step for job in run.attack_jobs() for step in job.chain):
            jobs_of_attack.setdefault(step.content.attack.label, set()).add(step.id)
        records = run.workspace.records("attack", set().union(*jobs_of_attack.values()))
        self.finished = {label for label, ids in jobs_of_attack.items() if ids <= records.keys()}

    def named_models(self, point: Recipe) -> None:
        """Check the models that are named outside the rows of watermarks and attacks."""
        if point.writes and "generate" in self.stages:
            self.llm(point.llm.name)
            if device := str(point.llm.options.get("device", "")):
                self.check(f"device {device}", _check_device, device)
        if point.embedder_device:
            self.check(f"device {point.embedder_device}", _check_device, point.embedder_device)
        for detection in point.detection if "detect" in self.stages else ():
            if detection.llm:
                self.llm(detection.llm)
        if point.quality.oracle and "quality" in self.stages:
            self.libraries("perplexity", _TORCH)
            self.check(f"oracle {point.quality.oracle}", store.check, point.quality.oracle)
        # The evaluation embeds, whichever records exist.
        written = any(not watermark.human for watermark in point.watermark)
        diverse = written and point.quality.oracle and point.quality.answers
        for name in (point.meaning, diversity_embedder(self.plan.recipe) if diverse else ""):
            if name:
                self.check(f"embedder {name}", check_embedder, name)

    def watermark(self, watermark: WatermarkRow, point: Recipe) -> None:
        """Check what the keys of a row need."""
        if not self.check(f"scheme {watermark.scheme}", scheme, watermark.scheme):
            return
        kind, label = parameters_class(watermark.scheme), watermark.label
        cutter = str(watermark.key.get("splitter", DEFAULT_SPLITTER))
        whole = self.check(f"splitter {cutter}", splitter, cutter)
        if kind.embeds:
            name = embedder_name(watermark)
            whole &= self.check(f"embedder {name}", check_embedder, name)
        if token_level(kind):
            self.libraries(label, _TORCH)
            if not watermark.human:
                self.check(f"token probabilities for {label}", _check_engine, point.llm.name)
            self._tokenizer(watermark, point)
        if "fitted" in watermark.key:
            path = str(watermark.key["fitted"])
            whole &= self.check(f"learned data {path}, for {label}", Fitted.load, path)
        if learns(watermark):
            self._lessons(watermark, point)
        elif whole:
            self.check(f"key of {label}", _check_key, watermark)

    def _tokenizer(self, watermark: WatermarkRow, point: Recipe) -> None:
        """Check that the tokenizer of a key is there, and that it is the language model's.

        That of a store model is made from the weights, which the run fetches; it is compared where they are on this machine.
        """
        name, model = str(watermark.parameters()["tokenizer"]), point.llm.model
        model_there = not self._results.get(f"language model {point.llm.name}")
        if name not in store.names() and (model_there or name != model):
            model_there &= self.check(f"tokenizer of {name}", load_tokenizer, name)
        if model_there and name != model and not watermark.human and _at_hand(name) and _at_hand(model):
            self.check(f"tokenizer of {watermark.label}", _check_tokenizer, name, model)

    def _lessons(self, watermark: WatermarkRow, point: Recipe) -> None:
        """Check what the scheme needs to learn: libraries, options that it knows, and enough texts."""
        self.libraries(f"the learning of {watermark.label}", getattr(scheme(watermark.scheme), "fit_libraries", ()))
        sources = [self.check(f"data set {name}", self.plan.fit_set, name, point) for name in point.fit.sets]
        for name in point.data.sets if all(sources) else ():
            if not self._results[f"data set {name}"]:
                texts = f"texts of {', '.join(point.fit.sets) or name} that {watermark.label} learns from"
                self.check(texts, self.plan.lesson(watermark, name, point).check)

    def attack(self, attack: OneAttack) -> None:
        """Check what the steps of an attack need."""
        for step in (step for step in attack.steps if step.label not in self.finished):
            loaded = load_attack(step.name, **step.settings)
            self.libraries(f"the attack {step.name}", loaded.libraries)
            for llm in loaded.llms:
                self.llm(llm)
            for model in loaded.models if not loaded.llms else ():
                self.check(f"model {model}, of the attack {step.name}", store.check, model)


def _need(library: str, extra: str) -> None:
    if find_spec(library) is None:
        raise MissingExtra(library, extra)


def _check_device(name: str) -> None:
    if name.startswith("cuda") and find_spec("torch"):
        import torch

        if not torch.cuda.is_available():
            raise LLMError("PyTorch finds no GPU on this machine; use --set llm.options={} --set embedder_device=")


def _check_engine(llm: str) -> None:
    if not may_give_next_tokens(llm):
        raise LLMError(
            f"{llm} does not return token probabilities, which a token-level watermark needs; load the model with "
            "transformers or llama.cpp, e.g. --set llm=transformers:smollm2-135m"
        )


def _at_hand(model: str) -> bool:
    """Whether the tokenizer of a model can be loaded without downloading weights."""
    return model not in store.names() or store.is_fetched(model)


def _check_tokenizer(name: str, model: str) -> None:
    if not load_tokenizer(name).agrees(load_tokenizer(model)):
        raise KeyMismatch(
            f"{name} has another tokenizer than the language model {model}, so that every text would fail; leave `tokenizer` "
            "out of the row's `key`"
        )


def _check_key(watermark: WatermarkRow) -> None:
    """Make a key, unless that would load an embedder that is neither in the store nor a stand-in."""
    public = dict(watermark.key)
    embedder = str(public.pop("embedder", DEFAULT_EMBEDDER))
    if embedder not in store.names() and embedder != "stand-in":
        return
    if "fitted" in public:
        public["fitted"] = Fitted.load(str(public["fitted"]))
    Key.generate(scheme=watermark.scheme, secret=bytes(32), embedder=embedder, **public)
