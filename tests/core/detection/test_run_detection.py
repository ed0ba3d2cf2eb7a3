"""Texts under soft keys: runs of sentences that share a block, from the choice of candidates to detection."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import oracle
from alimark import AliMark, DetectionSettings, Key, detect
from alimark.audit import calibration
from alimark.audit.auditor import Auditor
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.scoring import Soft, scoring
from alimark.core.detection.searching import excerpt_length
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import GenerationSettings
from alimark.core.generation.selection import TextOrigin
from alimark.core.generation.session import Session
from alimark.core.keys.key import load_keys
from alimark.core.keys.projection import carried, project, targets
from alimark.core.schemes.registry import rule_for
from alimark.errors import AlimarkError, LimitError, ModelError
from alimark.testing import StandInEmbedder, StandInLLM
from fixed_texts import EMBEDDER, generate, written

SETTINGS = DetectionSettings()


def key_of(number: int = 0, **parameters: Any) -> Key:
    secret = bytes([number, *range(1, 32)])
    return Key.generate(secret=secret, embedder=EMBEDDER, **parameters)


def mark_of(key: Key) -> AliMark:
    return AliMark(key, embedder=EMBEDDER)


def seed_with_start(key: Key, start: int) -> int:
    """A seed with which `written` begins a text at this block."""
    return next(seed for seed in range(1000) if key.start(f"{seed}/A long story.") == start)


def matches_of(detection: AlignedDetection) -> list[tuple[int, int]]:
    """The sentences that carry a block, each with the number of its block; both count from 1."""
    steps = detection.alignment
    return [(step.sentences[0], step.block) for step in steps if step.kind == "match" and step.block is not None]


# Marking


@pytest.mark.parametrize("run", [1, 4, (1, 2, 4)])
def test_candidates_are_compared_with_the_block_of_their_run(run: object) -> None:
    key = key_of(run=run, offsets=3)
    rule = rule_for(key, GenerationSettings(10, 4), TextOrigin("a text", "", (), splitter()))
    directions = targets(key, 40)
    start = key.start("a text")
    candidates = EMBEDDER.embed(["A dog barked.", "The mayor sold the bridge.", "It rained."])
    for i in range(10):
        seen = rule.see(candidates)
        worths = [weight.worth for weight in rule.weigh(seen)]
        expected = carried(project(candidates, key), directions[start + i], key)
        assert worths == pytest.approx([carry.worth for carry in expected])
        rule.chose(seen[0])


def test_the_start_depends_on_seed_and_prompt() -> None:
    key, settings = key_of(1, decision="hard", offsets=1024), GenerationSettings(2, 4)

    def blocks(prompt: str, seed: int) -> Any:
        rule: Any = Session(prompt, key, settings, rule=rule_for, seed=seed).rule
        return rule._targets.tolist()

    assert len({str(blocks(prompt, seed)) for prompt in ("One.", "Two.") for seed in range(3)}) == 6
    assert blocks("One.", 0) == blocks("One.", 0)


def test_a_text_follows_the_runs_of_its_key() -> None:
    """Each sentence lies further along the block of its run than along those of other runs."""
    key = key_of(run=(1, 3))
    projections = project(EMBEDDER.embed(written(key, 13)), key)
    along = (projections - projections.mean(axis=0)) @ targets(key, 13).T
    runs = key.derivation.run_numbers(13)
    same = runs[:, None] == runs
    assert along[same].mean() > 3 * np.abs(along[~same].mean())


def test_the_furthest_candidate_is_chosen() -> None:
    key, llm, seen = key_of(), StandInLLM(), []
    draw = llm.draw

    def recorded(*args: Any) -> Any:
        seen.append(draw(*args))
        return seen[-1]

    llm.draw = recorded  # type: ignore[method-assign, assignment]
    generation = generate("A long story.", key, EMBEDDER, llm, GenerationSettings(1, 64), seed=3)
    waves = [answers for [answers] in seen]
    assert (len(waves), sum(map(len, waves))) == (generation.waves, generation.candidates)
    drawn = list(dict.fromkeys(candidate.text.strip() for wave in waves for candidate in wave))
    worths = project(EMBEDDER.embed(drawn), key) @ targets(key, 1)[0]
    order = [drawn[i] for i in np.argsort(-worths)]
    assert order[0].startswith(generation.sentences[0])


# Detection


@pytest.mark.parametrize("parameters", [{"run": 1}, {"run": 4}, {"run": (1, 2, 4)}, {"decision": "hard"}])
def test_a_text_is_found_under_its_key_alone(parameters: dict[str, Any]) -> None:
    key, sentences = key_of(**parameters), written(key_of(**parameters))
    text = " ".join(sentences)
    detection: Any = mark_of(key).detect(text)
    assert (detection.verdict(), detection.p_value <= 0.002) == ("found", True)
    assert detection.z is None if key.soft else detection.z > 4
    assert detection.sentences == tuple(sentences)
    assert mark_of(key_of(1, **parameters)).detect(text).p_value > 0.01
    runs = key.derivation.run_numbers(60)
    assert sum(runs[block - 1] == runs[sentence - 1] for sentence, block in matches_of(detection)) >= 10


@pytest.mark.parametrize(
    ("offsets", "parameters"),
    [(32, {"run": 1}), (16, {"run": 4}), (16, {"run": (1, 2, 4)}), (16, {"decision": "hard"})],
)
def test_a_text_that_starts_at_a_later_run_is_found(offsets: int, parameters: dict[str, Any]) -> None:
    key = key_of(**parameters, offsets=offsets)
    start = int(key.starts[-1])
    text = " ".join(written(key, seed=seed_with_start(key, start)))
    detection = mark_of(key).detect(text)
    assert (detection.verdict(), detection.offsets) == ("found", offsets)
    runs = key.derivation.run_numbers(start + 60)
    assert sum(runs[block - 1] == runs[start + sentence - 1] for sentence, block in matches_of(detection)) >= 10
    # The same secret without offsets looks at the first runs alone.
    assert mark_of(key_of(**parameters)).detect(text).p_value > 0.01


def test_the_search_is_long_enough_for_every_start() -> None:
    key = key_of(run=(1, 4), offsets=5)
    rule = scoring(key, SETTINGS)
    assert isinstance(rule, Soft)
    assert rule.first_blocks.tolist() == key.starts.tolist() == [0, 1, 5, 9, 13]
    plain = scoring(key_of(run=(1, 4)), SETTINGS)
    assert rule.length(12) == plain.length(12) + 13
    assert excerpt_length(key, SETTINGS) == SETTINGS.max_blocks + 13


@pytest.mark.parametrize("change", ["drop", "merge", "move", "insert", "split"])
def test_the_mark_survives(change: str) -> None:
    key = key_of()
    changed = written(key, 16)
    if change == "drop":
        del changed[3:7]
    elif change == "merge":
        changed[1:3] = [changed[1].rstrip(".!?") + " and " + changed[2]]
        changed[6:8] = [changed[6].rstrip(".!?") + " and " + changed[7]]
    elif change == "move":
        changed[2], changed[9] = changed[9], changed[2]
    elif change == "split":
        changed[5:6] = [part.strip(" ,") + "." for part in (changed[5][:40], changed[5][40:])]
    else:
        changed[4:4] = written(None, 3, seed=77)
    assert mark_of(key).detect(" ".join(changed)).verdict() == "found"


@pytest.mark.parametrize(
    "parameters",
    [{"run": 6}, {"run": (1, 2, 4), "offsets": 6}, {"run": 1, "offsets": 8}, {"decision": "hard", "offsets": 8}],
)
def test_p_values_are_uniform_over_keys(parameters: dict[str, Any]) -> None:
    """Random keys have the runs of the key, or their scores would vary less than those of keys do."""
    texts = [" ".join(written(None, 8, seed=seed)) for seed in range(8)]
    chosen = DetectionSettings(draws=99)
    key = key_of(**parameters)
    embedded = calibration.Embedded.of(texts, key, EMBEDDER, chosen)
    values = np.concatenate(
        [calibration.fresh_keys(embedded, key, chosen, lambda n: None).p_randomised for _ in range(15)]
    )
    assert stats.kstest(values, "uniform").pvalue > 0.001


def test_only_sentences_are_embedded() -> None:
    """Soft keys align no merged sentences, so a text costs one embedding per sentence, whatever restructuring is asked for."""
    mark, sentences = mark_of(key_of()), written(None, 6)
    text = " ".join(sentences)
    assert list(mark.units([text])) == sentences
    assert mark.detect(text, restructure="none").raw == mark.detect(text, restructure="single").raw


@pytest.mark.parametrize("decision", ["soft", "hard"])
def test_a_passage_is_found_in_other_text(decision: str) -> None:
    key = key_of(decision=decision, offsets=4)
    start = int(key.starts[2])
    sentences = written(key, seed=seed_with_start(key, start))
    text = " ".join([*written(None, 10, seed=31), *sentences, *written(None, 10, seed=32)])
    detection = mark_of(key).detect(text, search="excerpt")
    [passage] = detection.passages
    assert abs(passage.first - 11) + abs(passage.last - 22) <= 4
    assert passage.last_block > start
    assert not mark_of(key).detect(" ".join(written(None, 30, seed=33)), search="excerpt").passages


def test_vectors_without_numbers_are_refused() -> None:
    class Broken(StandInEmbedder):
        def embed(self, texts: Any) -> Any:
            return super().embed(texts) * np.float32("nan")

    with pytest.raises(ModelError, match="infinite or NaN"):
        AliMark(key_of(), embedder=Broken()).detect("One sentence. And two.")


@pytest.mark.parametrize(
    ("text", "options", "error", "words"),
    [
        ("One sentence. And two.", {"null": "reference"}, AlimarkError, "hard bits"),
        ("One sentence. And two.", {"beta": 2.0}, AlimarkError, "alpha and beta"),
        ("Yes it is so. " * 20_001, {"search": "excerpt"}, LimitError, "20,000"),
    ],
    ids=["null", "beta", "long"],
)
def test_what_a_soft_key_refuses(text: str, options: Any, error: type[AlimarkError], words: str) -> None:
    with pytest.raises(error, match=words):
        mark_of(key_of()).detect(text, **options)


@pytest.mark.parametrize("parameters", [{}, {"run": (2, 3), "offsets": 5}, {"starts": "conversation"}])
def test_the_reference_program_gives_the_score(parameters: dict[str, Any]) -> None:
    """The program that docs/soft.md shows, with every constant."""
    key = key_of(**parameters)
    for sentences in (written(key), written(None, 9)):
        detection = mark_of(key).detect(" ".join(sentences), draws=9)
        length = math.ceil(oracle.BLOCKS_PER_SENTENCE * len(sentences)) + int(key.starts[-1])
        signs = np.sqrt(key.block_size) * targets(key, length)
        score = oracle.soft_score(project(EMBEDDER.embed(list(detection.sentences)), key), signs, key.starts.tolist())
        assert detection.raw == pytest.approx(score, rel=1e-9)


# Many keys


@pytest.mark.parametrize("search", ["whole", "excerpt"])
def test_keys_of_all_runs_score_together_as_alone(search: Any) -> None:
    keys = [key_of(0), key_of(0, run=(1, 2), offsets=3), key_of(0, run=1), key_of(1)]
    sentences = written(keys[2], 14)
    sentences[3:5] = [sentences[3].rstrip(".!?") + " and " + sentences[4]]
    text = " ".join(sentences)
    alone = {key.id: mark_of(key).detect(text, search=search, draws=99).raw for key in keys}
    for order in (keys, keys[::-1]):
        together = detect(text, order, embedder=EMBEDDER, best=4, search=search, draws=99)
        assert {detection.key_id: detection.raw for detection in together} == alone


def test_texts_are_found_under_a_folder_of_several_keys(tmp_path: Path) -> None:
    keys = [key_of(0), key_of(1, run=1), key_of(3, run=(1, 2, 4)), key_of(4, decision="hard")]
    keys.append(key_of(5, decision="hard", splitter="pysbd"))
    for number, key in enumerate(keys):
        key.save(tmp_path / f"{number}.json")
    loaded = load_keys([tmp_path])
    auditor = Auditor(loaded, SETTINGS, lambda _: EMBEDDER)
    texts = [" ".join(written(key)) for key in keys]
    answers = auditor.answer(texts)
    assert [getattr(answer, "key_id", answer) for answer in answers] == [key.id for key in keys]


def test_many_keys_of_a_long_text_are_scored_in_parts() -> None:
    keys = [key_of(number) for number in range(30)]
    text = " ".join(written(keys[0]) * 8)
    best = detect(text, keys, embedder=EMBEDDER, best=30, search="excerpt", draws=99)
    alone = {key.id: mark_of(key).detect(text, search="excerpt", draws=99).raw for key in keys[:3]}
    assert {detection.key_id: detection.raw for detection in best if detection.key_id in alone} == pytest.approx(alone)
