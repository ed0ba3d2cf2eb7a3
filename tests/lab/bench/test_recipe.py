"""Recipes: defaults, checks and their error messages, grids, overrides."""

import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from alimark.core.parameters import parameters_class
from alimark.errors import AlimarkError
from alimark.lab.attacks import attack_class
from alimark.lab.bench.recipe import Recipe, attacks, put, variants
from alimark.lab.bench.recipe_files import load, parse, to_toml

SMALL: dict[str, Any] = {"title": "small", "data": {"sets": ["manual"], "texts": 2}}
FOLDER = Path(__file__).parents[3] / "recipes"
RECIPES = sorted(path for path in FOLDER.rglob("*.toml") if path.parent.name != "profiles")
PAPER = [path for path in RECIPES if path.parent.name == "paper"]


def test_what_is_left_out_has_defaults() -> None:
    recipe = parse(SMALL)
    assert (recipe.data.sentences, recipe.data.human_texts, recipe.data.short) == (12, 500, "drop")
    assert recipe.llm.sampling == {}
    assert [watermark.label for watermark in recipe.watermark] == ["AliMark"]
    assert recipe.fpr == [0.01, 0.05, 0.005, 0.001]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"titel": "x"}, "titel"),
        ({"data": {"sets": ["manual"], "texts": 0}}, "data.texts"),
        ({"data": {"sets": ["manual"], "texts": "many"}}, "data.texts"),
        ({"data": {}}, "data.sets"),
        ({"fpr": [1.5]}, "fpr.0"),
        ({"attack": [{"name": "nosuch"}]}, "no attack is named"),
        ({"attack": [{"name": "delete", "rate": 2}]}, "between 0 and 1"),
        ({"attack": [{"name": "delete", "ratio": 0.2}]}, "ratio"),
        ({"attack": [{"name": "delete"}, {"name": "delete"}]}, "same name"),
        ({"attack": [{"name": "chat", "prompt": "papers"}]}, "the prompt must be"),
        ({"attack": [{"name": "chat", "then": {"name": "delete", "rate": 2}}]}, "between 0 and 1"),
        ({"attack": [{"name": "chat", "then": {"name": "nosuch"}}]}, "no attack is named"),
        ({"attack": [{"name": "chat", "then": {"rate": 0.2}}]}, "attack.0.then.name"),
        ({"attack": [{"name": "chat", "then": "delete"}]}, "attack.0.then"),
        ({"detection": [{"options": {"restructure": "double"}}]}, "restructure"),
        ({"detection": [{"options": {"nosuch": 1}}]}, "nosuch"),
        ({"detection": [{}, {}]}, "same label"),
        ({"watermark": []}, "watermark"),
        ({"llm": {"temperature": -1.0}}, "temperature"),
        ({"grid": {"data.texts": []}}, "at least 1 item"),
        ({"grid": {"data.texts": [0]}}, "cannot be used"),
        ({"grid": {"title.size": [1]}}, "no settings"),
    ],
)
def test_mistakes(change: dict[str, Any], why: str) -> None:
    with pytest.raises(AlimarkError, match=why):
        parse(SMALL | change)


def test_lists_of_settings_are_several_attacks() -> None:
    rows = [{"name": "delete", "rate": [0.1, 0.2]}, {"name": "translate", "via": ["pt", "fr"]}]
    recipe = parse(SMALL | {"attack": rows})
    expanded = attacks(recipe)
    assert [attack.label for attack in expanded] == ["delete 0.1", "delete 0.2", "translate pt", "translate fr"]
    assert [attack.rate for attack in expanded] == [0.1, 0.2, None, None]
    assert expanded[3].settings == {"via": "fr"}


def test_chains_of_attacks() -> None:
    chat = {"name": "chat", "then": {"name": "delete", "rate": [0.2, 0.4], "then": {"name": "typos"}}}
    recipe = parse(SMALL | {"attack": [{"name": "chat"}, chat]})
    plain, chain, _ = attacks(recipe)
    labels = ["chat", "chat, delete 0.2, typos", "chat, delete 0.4, typos"]
    assert [attack.label for attack in attacks(recipe)] == labels
    assert [step.label for step in chain.steps] == ["chat", "chat, delete 0.2", "chat, delete 0.2, typos"]
    assert chain.steps[0] == plain
    assert [step.settings for step in chain.steps] == [{}, {"rate": 0.2}, {}]
    assert chain.full_name == "chat, delete, typos"
    assert chain.steps[1].rate is None  # no point of a curve that begins at the text without an attack
    assert parse(tomllib.loads(to_toml(recipe))) == recipe
    changed = parse(SMALL | {"attack": [chat], "grid": {"attack.then.rate": [0.1, 0.3]}})
    assert [attacks(variant.recipe)[0].label for variant in variants(changed)] == [
        "chat, delete 0.1, typos", "chat, delete 0.3, typos",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"name": "chat", "prompt": ["editor", "Say it again:\n\n{text}"]}, ["chat editor", 'chat "Say it again:"']),
        ({"name": "chat", "rounds": [1, 2]}, ["chat 1 round", "chat 2 rounds"]),
        ({"name": "pegasus", "preset": ["", "paper"]}, ["pegasus", "pegasus (preset paper)"]),
        ({"name": "chat", "preset": "paper"}, ["chat (preset paper)"]),
    ],
)
def test_prompts_rounds_and_presets_are_in_the_label(settings: dict[str, Any], labels: list[str]) -> None:
    assert [attack.label for attack in attacks(parse(SMALL | {"attack": [settings]}))] == labels
    with pytest.raises(AlimarkError, match="no preset 'papers'"):
        parse(SMALL | {"attack": [{"name": "chat", "preset": "papers"}]})


def test_the_statistic_is_named() -> None:
    assert parse(SMALL).statistic == "score"
    assert parse(SMALL | {"statistic": "z"}).statistic == "z"
    with pytest.raises(AlimarkError, match="statistic"):
        parse(SMALL | {"statistic": "t"})


def test_a_grid_is_every_combination() -> None:
    recipe = parse(SMALL | {"grid": {"watermark.key.block_size": [4, 8], "data.sentences": [6, 12]}})
    expanded = list(variants(recipe))
    assert [variant.grid for variant in expanded] == [
        {"block_size": 4, "sentences": 6},
        {"block_size": 4, "sentences": 12},
        {"block_size": 8, "sentences": 6},
        {"block_size": 8, "sentences": 12},
    ]
    assert expanded[2].recipe.watermark[0].key == {"block_size": 8}
    assert expanded[2].recipe.data.sentences == 6


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text('title = "x"\ndata = {sets = ["manual"]}\nwatermark = [{label = "A"}, {label = "B"}]\n', "utf-8")
    changes = ["data.texts=7", "watermark.1.key.block_size=16", "watermark.generate.candidates=8"]
    recipe = load(path, ["llm=gemma-3-270m", *changes])
    assert recipe.llm.name == "gemma-3-270m"
    assert recipe.data.texts == 7
    assert [watermark.key for watermark in recipe.watermark] == [{}, {"block_size": 16}]
    assert [watermark.generate for watermark in recipe.watermark] == [{"candidates": 8}] * 2
    for wrong, why in (("llm", "PATH=VALUE"), ("watermark.5.label=x", "only 2"), ("data.nosuch=1", "nosuch")):
        with pytest.raises(AlimarkError, match=why):
            load(path, [wrong])
    path.write_text("title = ", "utf-8")
    with pytest.raises(AlimarkError, match="not TOML"):
        load(path)


def rows(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The parameters of the keys of each row, at the first point of the grid."""
    first = next(variants(recipe)).recipe
    return {watermark.label: watermark.key for watermark in first.watermark}


RIVALS = [
    {"label": "KGW", "scheme": "kgw"},
    {"label": "SIR", "scheme": "sir", "key": {"tokenizer": "gemma-3-270m"}},
    {"label": "SemStamp", "scheme": "semstamp"},
    {"label": "SimMark", "scheme": "simmark", "key": {"embedder": "hkunlp/instructor-large"}},
]


def test_rows_get_embedder_and_tokenizer_of_the_recipe() -> None:
    content = SMALL | {"watermark": RIVALS, "embedder": "all-mpnet-base-v2", "llm": {"name": "transformers:org/model"}}
    assert rows(parse(content)) == {
        "KGW": {"tokenizer": "org/model"},
        "SIR": {"tokenizer": "gemma-3-270m", "embedder": "all-mpnet-base-v2"},
        "SemStamp": {"embedder": "all-mpnet-base-v2"},
        "SimMark": {"embedder": "hkunlp/instructor-large"},
    }
    # Records of earlier releases name neither the default tokenizer nor the default embedder.
    assert rows(parse(SMALL | {"watermark": RIVALS, "llm": {"name": "transformers:smollm2-135m"}}))["KGW"] == {}
    names = ["org/a", "org/b"]
    several = variants(parse(SMALL | {"watermark": RIVALS[:1], "grid": {"llm.name": names}}))
    assert [variant.recipe.watermark[0].key["tokenizer"] for variant in several] == names


THEIR_OWN = dict.fromkeys(("SemStamp", "k-SemStamp"), "AbeHou/SemStamp-c4-sbert") | {
    "SimMark": "hkunlp/instructor-large#Represent the sentence for cosine similarity:"
}
"""The embedders of the rows that have not the recipe's, which are those of MarkLLM and of the methods' repositories."""


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_papers_recipes_have_its_attacks_one_embedder_and_the_tokenizer_of_their_llm(path: Path) -> None:
    recipe = load(path)
    assert (recipe.data.human_texts, recipe.statistic) == (500, "z")
    for attack in attacks(recipe):
        assert attack.settings.get("preset") == ("paper" if attack_class(attack.name).presets else None), attack.label
    for variant in variants(recipe):
        for watermark in variant.recipe.watermark:
            kind = parameters_class(watermark.scheme)
            if kind.embeds:
                assert watermark.key["embedder"] == THEIR_OWN.get(watermark.label, variant.recipe.embedder)
            if "tokenizer" in watermark.parameters().keys():  # noqa: SIM118
                assert watermark.parameters()["tokenizer"] == variant.recipe.llm.name


@pytest.mark.parametrize("part", ["quality", "runtime", "attack", "meaning"])
def test_parts_can_be_left_out(part: str) -> None:
    full = load(FOLDER / "smoke.toml")
    without = load(FOLDER / "smoke.toml", [f"{part}=none"])
    assert getattr(full, part) != getattr(without, part) == getattr(parse(SMALL), part)


PROFILE = """
[names]
"org/large" = "smollm2-135m"
"org/larger" = "smollm2-135m"
[attack]
pegasus = { name = "translate", via = "pt" }
[watermark.PMark]
"key.samples" = 8
[set]
"data.texts" = 3
"quality.texts" = 1
"""


def test_profiles(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "here.toml").write_text(PROFILE, "utf-8")
    (tmp_path / "one.toml").write_text(
        """
        title = "x"
        data = { sets = ["manual"] }
        llm = { name = "org/large" }
        watermark = [{ label = "A" }, { label = "PMark", scheme = "pmark", key = { preset = "paper" } }]
        attack = [{ name = "pegasus" }, { name = "delete", rate = 0.5 }]
        grid = { "llm.name" = ["org/large", "org/larger", "gemma-3-270m"] }
        """,
        "utf-8",
    )
    recipe = load(tmp_path / "one.toml", ["watermark.A.key.block_size=16"], ["here"])
    assert recipe.grid == {"llm.name": ["smollm2-135m", "gemma-3-270m"]}
    assert [attack.label for attack in attacks(recipe)] == ["translate pt", "delete 0.5"]
    assert [watermark.key for watermark in recipe.watermark] == [{"block_size": 16}, {"preset": "paper", "samples": 8}]
    assert recipe.data.texts == 3
    assert recipe.quality == parse(SMALL).quality  # a profile adds no part that the recipe leaves out
    assert load(tmp_path / "one.toml", [], [str(tmp_path / "profiles" / "here.toml")]).data.texts == 3
    with pytest.raises(AlimarkError, match=r"no profile 'there' \(it has: here\)"):
        load(tmp_path / "one.toml", [], ["there"])
    (tmp_path / "profiles" / "here.toml").write_text("[data]\ntexts = 3", "utf-8")
    with pytest.raises(AlimarkError, match="unknown tables data"):
        load(tmp_path / "one.toml", [], ["here"])


def test_put_leaves_what_it_copies() -> None:
    before = {"a": {"b": 1}}
    assert put(before, "a.b", 2) == {"a": {"b": 2}}
    assert before == {"a": {"b": 1}}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_of_the_project_can_be_used_and_written_again(path: Path) -> None:
    recipe = load(path)
    assert recipe.title
    assert parse(tomllib.loads(to_toml(recipe))) == recipe
    assert list(variants(recipe))


@pytest.mark.parametrize(
    "value", ["\U000e0001", "tab\t and \x7f", 'a "quote" \\', "\u2028", 1e300, date(2026, 1, 2), [1, 2]]
)
def test_every_value_can_be_written_as_toml(value: object) -> None:
    """The written recipe says the same as the recipe: a test of the library that writes it."""
    recipe = parse(SMALL | {"llm": {"options": {"value": value, "a b.c": {"d": [value]}}}})
    assert parse(tomllib.loads(to_toml(recipe))) == recipe
