"""The rivals as all watermarks are used: key files, limits, the command line, the audit, calibration and the bench."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rival_keys import ALL, EMBEDDER, LEARN, PREFIX, RIVALS, human, key_of, learned

from alimark import AliMark, Key, load
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.keys.fitted import Fitted
from alimark.core.llm.base import Draw, Request, Sampling
from alimark.core.parameters import SCHEMES, SchemeParameters, parameters_class
from alimark.core.schemes.api import detect
from alimark.errors import AlimarkError, KeyFileError
from alimark.lab.bench.evaluate import evaluate
from alimark.lab.bench.recipe_files import parse
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run as RunCommand
from watched import Told


class TestKeys:
    @pytest.mark.parametrize("name", ALL)
    def test_a_file_holds_all_of_a_key_and_nothing_shows_its_secret(self, name: str, tmp_path: Path) -> None:
        key = key_of(name, 77)
        key.save(tmp_path / "k.json")
        again = Key.load(tmp_path / "k.json")
        assert again == key
        assert dict(again.parameters) == dict(key.parameters)
        assert again.stream("x", 8) == key.stream("x", 8)
        content = json.loads((tmp_path / "k.json").read_text())
        assert "block_size" not in content
        assert content["secret"] not in repr(key) + json.dumps(key.public()) + repr(load(key, embedder=EMBEDDER))
        if name in LEARN:
            fitted: Any = again.fitted
            assert all(np.array_equal(array, learned(name).arrays[one]) for one, array in fitted.arrays.items())
        with pytest.raises(TypeError):
            again.parameters["ratio"] = 0.5  # type: ignore[index]

    def test_defaults_are_the_papers_and_presets_those_of_the_comparison(self) -> None:
        def parameters(name: str, given: dict[str, object], preset: str | None = None) -> SchemeParameters:
            return parameters_class(name).of(given, preset=preset)

        assert dict(parameters("semstamp", {})) == {"hyperplanes": 3, "ratio": 0.25, "margin": 0.02}
        assert parameters("semstamp", {}, "paper")["margin"] == 0.01
        assert parameters("semstamp", {"margin": 0.5}, "paper")["margin"] == 0.5
        assert dict(parameters("k-semstamp", {})) == {"ratio": 0.25, "margin": 0.01}
        assert dict(parameters("simmark", {}, "paper")) == {"lower": None, "upper": None, "decay": 250.0}
        assert parameters("pmark", {})["channels"] == 4
        assert parameters("pmark", {}, "paper")["median"] == "sampled"
        assert (parameters("exp", {})["length"], parameters("exp", {}, "paper")["length"]) == (256, 256)
        assert SCHEMES.names()[0] == "alimark"

    @pytest.mark.parametrize(
        ("name", "wrong", "why"),
        [
            ("nothing", {}, "not known to this release"),
            ("semstamp", {"ratio": 0.01}, "leaves 0 valid"),
            ("semstamp", {"hyperplanes": 3.5}, "a whole number"),
            ("semstamp", {"hyperplanes": 99}, "from 1 to 12"),
            ("semstamp", {"magic": 1}, "has no parameter magic"),
            ("semstamp", {"margin": float("nan")}, "a number"),
            ("semstamp", {"preset": "best"}, "no preset"),
            ("semstamp", {"block_size": 8}, "has no parameter block_size"),
            ("simmark", {"lower": 0.5}, "given together"),
            ("simmark", {"lower": 0.5, "upper": 0.2}, "empty"),
            ("pmark", {"median": "mean"}, "one of prior, sampled"),
            ("pmark", {"decay": -1}, "decay"),
            ("samark", {"channels": 0}, "from 1 to 16"),
            ("samark", {"signs": "none"}, "one of key, text"),
            ("samark", {"slope": 0.0}, "slope must be"),
            ("samark", {"similarity": 0.0}, "similarity must be"),
            ("samark", {"novelty": -1.0}, "novelty must be"),
            ("alimark", {"ratio": 0.25}, "has no parameter ratio"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, name: str, wrong: dict[str, Any], why: str) -> None:
        more = {"fitted": learned(name)} if name in LEARN else {}
        with pytest.raises(KeyFileError, match=why):
            Key.generate(scheme=name, embedder=EMBEDDER, **more, **wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", LEARN)
    def test_a_scheme_that_learns_needs_data_for_it_and_its_embedder(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(KeyFileError, match="alimark fit"):
            Key.generate(scheme=name, embedder=EMBEDDER)
        other = "simmark" if name == "k-semstamp" else "k-semstamp"
        with pytest.raises(KeyFileError, match="cannot be used for"):
            Key.generate(scheme=name, embedder=EMBEDDER, fitted=learned(other))
        with pytest.raises(KeyFileError, match="learned with the embedder"):
            Key.generate(scheme=name, embedder=StandInEmbedder(32), fitted=learned(name))
        with pytest.raises(KeyFileError, match="does not learn"):
            Key.generate(scheme="pmark", embedder=EMBEDDER, fitted=Fitted("pmark", {}, learned(name).origin))

    def test_files_that_were_changed_or_are_none_are_told(self, tmp_path: Path) -> None:
        path = tmp_path / "k.json"
        key_of("k-semstamp").save(path)
        content = json.loads(path.read_text())
        for change, why in (
            ({"parameters": {"ratio": 0.5, "margin": 0.01}}, "was changed"),
            ({"parameters": []}, "valid key file"),
            ({"fitted": None}, "was changed"),
            ({"fitted": {"scheme": "k-semstamp", "origin": {}, "arrays": {"centres": {}}}}, "malformed"),
            ({"scheme": "nothing"}, "not known"),
        ):
            path.write_text(json.dumps(content | change))
            with pytest.raises(KeyFileError, match=why):
                Key.load(path)
        learned("simmark").save(tmp_path / "f.npz")
        again = Fitted.load(tmp_path / "f.npz")
        assert dict(again.origin) == dict(learned("simmark").origin)
        whole = (tmp_path / "f.npz").read_bytes()
        for bad in (b"", b"no file", whole[: len(whole) // 2]):
            (tmp_path / "bad.npz").write_bytes(bad)
            with pytest.raises(KeyFileError, match="not written by"):
                Fitted.load(tmp_path / "bad.npz")
        np.savez(tmp_path / "pickled.npz", about=np.array({"scheme": 1}, object), allow_pickle=True)
        with pytest.raises(KeyFileError, match="not written by"):
            Fitted.load(tmp_path / "pickled.npz")


SAME = Told(
    lambda request, n: Draw(f" The old captain counted {len(request.context)} ships and {n} gulls. ", 9, "sentence")
)
"""Says nearly the same whatever went before, so that hardly any rule can be met."""


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "semstamp": {"margin": 0.9},
    "k-semstamp": {"margin": 0.9},
    "simmark": {"lower": 0.01, "upper": 0.02},
    "pmark": {"channels": 16},
}


@pytest.mark.parametrize("name", RIVALS)
def test_a_rule_that_cannot_be_met_stops_at_its_limit_takes_the_best_and_says_so(name: str) -> None:
    key = key_of(name, 4, **IMPOSSIBLE[name])
    mark: Any = load(key, embedder=EMBEDDER)
    made = mark.generate("A day.", SAME, sentences=4, candidates=20, seed=1)
    assert made.ended == "complete"
    bound = 4 - (name in PREFIX)  # the first sentence is free
    assert made.unmet == bound == made.record("x")["unmet"]
    assert made.candidates == 20 * bound + (name in PREFIX)
    # The best: no other draw of the wave was worth more.
    rule = mark.rule(key)
    context = "A day."
    for number, sentence in enumerate(made.sentences):
        free = name in PREFIX and number == 0
        [draws] = SAME.draw([Request(context, 1 if free else 20, 0)], Sampling(), lambda text: True)
        weights = rule.weigh(rule.see(EMBEDDER.embed([draw.text.strip() for draw in draws])))
        taken = rule.weigh(rule.see(EMBEDDER.embed([sentence])))
        if not free and name != "pmark":
            assert taken[0].worth == pytest.approx(max(weight.worth for weight in weights))
        rule.chose(rule.see(EMBEDDER.embed([sentence]))[0])
        context += " " + sentence
    assert mark.candidates == (64 if name == "pmark" else 100)


@pytest.mark.parametrize("name", ALL)
def test_texts_do_not_depend_on_waves_or_on_who_else_is_served(name: str) -> None:
    from alimark.core.generation.api import GenerationSettings, Prompt

    mark = load(key_of(name, 9), embedder=EMBEDDER)
    prompts = [Prompt(f"Day {i} began.", seed=i) for i in range(4)]
    texts = set()
    for wave, batch in ((None, 1), (3, 4), (50, 2)):
        settings = GenerationSettings(4, 50, wave=wave)
        made = dict(mark.generate_many(prompts, StandInLLM(), settings, batch=batch))
        texts.add(tuple(made[i].text for i in range(4)))  # type: ignore[union-attr]
    assert len(texts) == 1


def test_keys_of_several_schemes_are_told_apart() -> None:
    keys = [key_of(name, n) for n in (1, 2) for name in ("semstamp", "pmark")]
    keys.append(Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(32)))
    text = load(keys[2], embedder=EMBEDDER).generate("A day.", StandInLLM(), sentences=10, seed=3).text
    found = detect(text, keys, embedder=EMBEDDER)
    assert (found[0].key_id, found[0].keys_tried, found[0].verdict()) == (keys[2].id, 5, "found")
    # Settings that all schemes share, as the command line makes them for keys of several schemes.
    shared = detect(text, keys, embedder=EMBEDDER, settings=RandomKeys(draws=500))
    assert shared[0].key_id == keys[2].id


def test_errors_are_answers_for_their_text_alone() -> None:
    mark = load(key_of("semstamp"), embedder=EMBEDDER)
    good, empty = mark.detect_batch([human()[0], " \n "])
    assert not isinstance(good, AlimarkError)
    assert "no sentence" in str(empty)
    with pytest.raises(AlimarkError, match="unknown detection option"):
        mark.detect(human()[0], restructure="none")
    with pytest.raises(AlimarkError, match="unknown generation option words; known: sentences, tokens,"):
        mark.generate("A day.", StandInLLM(), words=3)  # type: ignore[call-overload]
    with pytest.raises(AlimarkError, match="give `sentences`"):
        mark.generate("A day.", StandInLLM(), tokens=30)
    with pytest.raises(KeyFileError, match="not alimark"):
        AliMark(key_of("semstamp"), embedder=EMBEDDER)
    with pytest.raises(KeyFileError, match="not pmark"):
        type(load(key_of("pmark"), embedder=EMBEDDER))(key_of("semstamp"))


@pytest.mark.usefixtures("stand_in_models")
@pytest.mark.parametrize("name", RIVALS)
def test_the_whole_road_on_the_command_line(name: str, command: RunCommand, tmp_path: Path) -> None:
    key, text = tmp_path / "key.json", tmp_path / "text.txt"
    corpus = tmp_path / "human.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": one}) for one in human()))
    more: list[object] = []
    if name in LEARN:
        status, out, _ = command("fit", name, "--human", corpus, "-o", tmp_path / "f.npz", "--json")
        assert status == 0
        assert json.loads(out)["origin"]["texts"] == len(set(human()))  # some of the manual is there twice
        more = ["--fitted", tmp_path / "f.npz"]
    status, out, err = command("keygen", "--scheme", name, *more, "--embedder", "stand-in", "-o", key)
    assert (status, out.strip()) == (0, Key.load(key).id), err
    assert Key.load(key).scheme == name
    key_of(name, 1).save(key, overwrite=True)  # from here on one that is the same in every run
    status, out, err = command("generate", "-k", key, "-p", "It was a day.", "--seed", 3, "--sentences", 14)
    assert status == 0, err
    assert name in err
    text.write_text(out)
    status, out, _ = command("detect", "-k", key, text)
    assert status == 0
    assert "found" in out
    assert "counted" in out
    status, out, _ = command("detect", "-k", key, text, "--json")
    assert json.loads(out)["evidence"]["counted"] >= 13
    assert command("detect", "-k", key, text, "--excerpt")[0] == 2
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "prompt": "One day."}\n{"id": "b", "prompt": "Two days."}\n')
    files = ("--input", prompts, "--output", tmp_path / "t.jsonl")
    assert command("generate", "-k", key, *files, "--sentences", 8, "--seed", 1)[0] == 0
    made = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [one["scheme"] for one in made] == [name, name]
    assert all("unmet" in one for one in made)
    assert command("audit", "-k", key, tmp_path / "t.jsonl", "--output", tmp_path / "d.jsonl")[0] == 0
    found = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert all(one["z"] > 2 and one["p_value"] <= 0.2 and one["scheme"] == name for one in found)
    status, out, err = command(
        "calibrate", "-k", key, "--human", corpus, "--sentences", 6, "--draws", 99, "--fresh", "--keys", 2, "--json"
    )
    assert status == 0, err
    assert json.loads(out)[0]["texts"] > 20
    assert json.loads(out)[0]["this_key"]["p"][2] <= 1


@pytest.mark.usefixtures("stand_in_models")
def test_wrong_words_on_the_command_line_are_told(command: RunCommand, tmp_path: Path) -> None:
    for words, why in (
        (("keygen", "--scheme", "semstamp", "--set", "ratio", "-o", tmp_path / "k"), "NAME=VALUE"),
        (("keygen", "--scheme", "semstamp", "--set", "ratio=7", "-o", tmp_path / "k"), "valid ratio"),
        (("keygen", "--scheme", "simmark", "-o", tmp_path / "k"), "alimark fit simmark"),
        (("keygen", "--preset", "paper", "-o", tmp_path / "k"), "has no preset"),
        (("fit", "pmark", "-o", tmp_path / "f"), "learns nothing"),
        (("fit", "simmark", "--set", "colour=red", "-o", tmp_path / "f"), "no option colour"),
        (("fit", "simmark", "--set", "closeness=3", "-o", tmp_path / "f"), "these options"),
        (("fit", "nothing", "-o", tmp_path / "f"), "not known"),
    ):
        status, _, err = command(*words)
        assert status == 2
        assert why in err
    given = ("--scheme", "semstamp", "--preset", "paper", "--set", "hyperplanes=4")
    assert command("keygen", *given, "-o", tmp_path / "k").status == 0
    assert dict(Key.load(tmp_path / "k").parameters) == {"hyperplanes": 4, "ratio": 0.25, "margin": 0.01}


def test_the_bench_treats_all_alike(tmp_path: Path) -> None:
    for name in LEARN:
        learned(name).save(tmp_path / f"{name}.npz")
    every = [{"label": "AliMark", "key": {"embedder": "stand-in"}, "generate": {"candidates": 8}}]
    for name in RIVALS:
        key = {"embedder": "stand-in"} | ({"fitted": str(tmp_path / f"{name}.npz")} if name in LEARN else {})
        every.append({"label": name, "scheme": name, "key": key})
    sampled = {"embedder": "stand-in", "median": "sampled", "samples": 8}
    every.append({"label": "sampled", "scheme": "pmark", "key": sampled})
    recipe = parse({
        "title": "all", "data": {"sets": ["manual"], "texts": 3, "sentences": 8, "human_texts": 20},
        "llm": {"name": "stand-in"}, "watermark": every, "attack": [{"name": "delete", "rate": 0.25}],
        "detection": [{"options": {"draws": 99, "restructure": "none"}}],
    })  # fmt: skip
    made = Run(recipe, Workspace(tmp_path / "ws"))
    made.run()
    results: Any = evaluate(made, "all")
    assert [row["method"] for row in results["rows"]] == [one["label"] for one in every for _ in range(2)]
    assert all(row["failed"] == 0 and row["texts"] == 3 for row in results["rows"])
    clean = {row["method"]: row["auroc"]["value"] for row in results["rows"] if row["attack"] == "none"}
    assert all(clean[name] > 0.9 for name in RIVALS), clean
    assert {cost["method"] for cost in results["cost"]} == {one["label"] for one in every}
    wrong = {"scheme": "semstamp", "key": {"ratio": 0.01}}
    with pytest.raises(AlimarkError, match="valid ratio"):
        parse({"title": "x", "data": {"sets": ["manual"]}, "watermark": [wrong]})
