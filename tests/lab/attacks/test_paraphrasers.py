"""Pegasus, Parrot and DIPPER, with tiny models of the same architectures that know a few sentences."""

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")

import tiny_models as tiny  # noqa: E402
from tiny_models import PARAPHRASES, TEXT, dipper_input, dipper_pairs  # noqa: E402

from alimark.core.frozen.text.splitting import Piece  # noqa: E402
from alimark.errors import AttackError, MissingExtra, ModelError  # noqa: E402
from alimark.lab.attacks import _seq2seq, dipper, paraphrasers  # noqa: E402
from alimark.lab.attacks.base import Attacked, Target  # noqa: E402
from alimark.lab.attacks.dipper import Dipper  # noqa: E402
from alimark.lab.attacks.paraphrasers import Parrot, Pegasus  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SENTENCES, SAID = list(PARAPHRASES), list(PARAPHRASES.values())


class Folders:
    """The folders of tiny models, each trained when a test first needs it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _new(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir()
        return folder

    @cache  # noqa: B019 (there is one of them)
    def pegasus(self, steps: int = 110) -> str:
        return str(tiny.save_pegasus(self._new(f"pegasus-{steps}"), list(PARAPHRASES.items()), steps))

    @cache  # noqa: B019
    def t5(self, steps: int = 110) -> str:
        """A T5 that knows the task of Parrot and that of DIPPER."""
        pairs = [(f"paraphrase: {sentence}", said) for sentence, said in PARAPHRASES.items()]
        return str(tiny.save_t5(self._new(f"t5-{steps}"), [*pairs, *dipper_pairs()], steps))

    @cache  # noqa: B019
    def judge(self, *labels: str, seed: int = 0) -> str:
        return str(tiny.save_judge(self._new(f"judge-{'-'.join(labels)}-{seed}"), labels, seed))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Folders:
    """The tiny models. Progress bars are off while they are made, because tests check what the attacks print."""
    transformers.utils.logging.disable_progress_bar()
    return Folders(tmp_path_factory.mktemp("paraphrasers"))


def finished(attack: Any, *targets: Target) -> list[Attacked]:
    return [done for _, done in sorted(attack.run(targets), key=lambda pair: pair[0])]


@contextmanager
def inputs_of(network: Any) -> Iterator[list[str]]:
    """The different texts that the encoder reads inside the block."""
    read: list[str] = []

    def note(_: Any, args: Any, options: Any) -> None:
        ids = options["input_ids"] if "input_ids" in options else args[0]
        read.extend(text for text in network.tokenizer.batch_decode(ids, skip_special_tokens=True) if text not in read)

    hook = network.model.get_encoder().register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield read
    finally:
        hook.remove()


# Pegasus


def test_pegasus_rewrites_sentences_and_keeps_the_layout(folders: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    attack = Pegasus(model=folders.pegasus())
    capfd.readouterr()
    text = f"# Town\n\n1. {SENTENCES[0]}\n2. {SENTENCES[1]}\n\n```\nx = 1\n```\n\n{SENTENCES[2]} {SENTENCES[3]}\n"
    [done] = finished(attack, Target(text))
    assert done == Attacked(done.text, "", 1, done.rejected, done.left)
    heading, _, rest = done.text.partition("\n\n")
    assert heading.startswith("# ")
    assert rest == f"1. {SAID[0]}\n2. {SAID[1]}\n\n```\nx = 1\n```\n\n{SAID[2]} {SAID[3]}\n"
    assert capfd.readouterr() == ("", "")


def test_pegasus_gives_its_best_beams_best_first(folders: Folders) -> None:
    attack = Pegasus(model=folders.pegasus(), beams=4, batch=2)
    answers = attack.answers(SENTENCES)
    assert [row[0] for row in answers] == SAID
    assert all(len(row) == len(set(row)) == 3 for row in answers)
    assert [Pegasus(model=folders.pegasus(), beams=2).answers([s])[0][0] for s in SENTENCES] == SAID
    assert len(Pegasus(model=folders.pegasus(), beams=2).answers(SENTENCES[:1])[0]) == 2


def test_pegasus_reads_sentences_on_one_line_and_cut(folders: Folders) -> None:
    attack = Pegasus(model=folders.pegasus(), max_tokens=4)
    with inputs_of(attack._network) as read:
        attack.answers(["The  mayor\nopened the old bridge on Monday."])
    whole = attack._network.tokenizer(SENTENCES[0])["input_ids"]
    assert read == [attack._network.tokenizer.decode(whole[:3])]


def test_sampled_beams_are_a_function_of_the_sentence(folders: Folders) -> None:
    attack = Pegasus(model=folders.pegasus(20), beams=3, sample=True)
    before = torch.get_rng_state()
    answers = attack.answers(SENTENCES)
    assert torch.equal(torch.get_rng_state(), before)
    assert answers == [attack.answers([sentence])[0] for sentence in SENTENCES]
    assert answers != Pegasus(model=folders.pegasus(20), beams=3).answers(SENTENCES)
    assert answers != Pegasus(model=folders.pegasus(20), beams=3, sample=True, temperature=0.5).answers(SENTENCES)


def test_what_a_random_model_says_is_no_attack(folders: Folders) -> None:
    """Its sentences pass the checks one by one, but together they do not."""
    attack = Pegasus(model=folders.pegasus(0), beams=1, max_tokens=12)
    [done] = finished(attack, Target(TEXT))
    assert (done.text, done.error, done.left) == ("", "degenerate", 0)
    assert done.rejected[-1].startswith("degenerate: ")
    with pytest.raises(AttackError, match="pegasus failed: degenerate"):
        attack(TEXT)


def test_pegasus_as_in_the_public_code(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled beams at temperature 2 with a repetition penalty; the first one is taken, whatever it says."""
    attack = Pegasus.of(model=folders.pegasus(20), preset="paper")
    settings = {name: attack.settings[name] for name in ("sample", "temperature", "top_k", "repetition_penalty")}
    assert settings == {"sample": True, "temperature": 2.0, "top_k": 50, "repetition_penalty": 1.03}
    asked: list[dict[str, Any]] = []
    generate = attack._network.model.generate

    def spy(**options: Any) -> Any:
        asked.append({name: options[name] for name in options if name not in ("input_ids", "attention_mask")})
        return generate(**options)

    monkeypatch.setattr(attack._network.model, "generate", spy)
    [done] = finished(attack, Target(TEXT))
    assert not done.failed
    assert (done.left, done.rejected) == (0, ())
    assert asked[0] == {
        "num_beams": 10, "num_return_sequences": 3, "max_new_tokens": 60, "do_sample": True, "temperature": 2.0,
        "top_k": 50, "repetition_penalty": 1.03,
    }  # fmt: skip
    first = [row[0] for row in attack.answers(SENTENCES)]
    assert done.text == " ".join(text for text in first if text)
    [random] = finished(Pegasus.of(model=folders.pegasus(0), max_tokens=12, preset="paper"), Target(TEXT))
    assert random.text  # with the checks this is no attack


def test_an_answer_that_is_used_unchecked_may_be_empty(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = Pegasus.of(model=folders.pegasus(), preset="paper")
    rows = {sentence: [said] for sentence, said in PARAPHRASES.items()} | {SENTENCES[2]: [""], SENTENCES[4]: []}
    monkeypatch.setattr(Pegasus, "answers", lambda self, sentences: [rows[sentence] for sentence in sentences])
    [done] = finished(attack, Target(TEXT))
    assert done == Attacked(" ".join(SAID[i] for i in (0, 1, 3, 5)), rejected=("empty", "empty"))
    rows = {sentence: [""] for sentence in SENTENCES}
    assert finished(attack, Target(TEXT))[0] == Attacked("", "empty", rejected=("empty",) * 6)
    assert finished(attack, Target(" "))[0] == Attacked("", "the text holds no sentence")


LAID_OUT = "# {}\n\n- {}\n- {}\n\n```\nx = 1\n```\n\n{} {}\n"
"""A heading, a list, code before a sentence, and a second sentence on its line."""
WITHOUT_TWO = f"# {SAID[0]}\n\n- {SAID[1]}\n\n```\nx = 1\n```\n\n{SAID[4]}\n"
"""The rewrite without the second item of the list and the sentence after the code."""


def test_a_lost_sentence_leaves_code_and_paragraphs(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {sentence: [said] for sentence, said in PARAPHRASES.items()} | {SENTENCES[2]: [""], SENTENCES[3]: [" "]}
    monkeypatch.setattr(Pegasus, "answers", lambda self, sentences: [rows[sentence] for sentence in sentences])
    [done] = finished(Pegasus.of(preset="paper"), Target(LAID_OUT.format(*SENTENCES[:5])))
    assert done == Attacked(WITHOUT_TWO, rejected=("empty", "empty"))


HALF_PAIR = "The mayor \ud800 opened the old bridge on Monday."
"""A sentence with half a surrogate pair, which JSON can hold; tokenizers cannot read it."""


@pytest.mark.parametrize("preset", ["", "paper"])
def test_half_a_surrogate_pair_does_not_end_the_run(folders: Folders, preset: str) -> None:
    targets = [Target(f"{HALF_PAIR} {SENTENCES[1]}"), Target(SENTENCES[2])]
    attacks = (
        Pegasus.of(model=folders.pegasus(), beams=2, preset=preset),
        Pegasus.of(model=folders.pegasus(), beams=2, preset=preset, sample=True),
        parrot_of(folders, adequacy=0, fluency=0, beams=4, preset=preset),
        Dipper.of(model=folders.t5(), preset=preset),
    )
    for attack in attacks:
        first, second = finished(attack, *targets)
        assert first.text or first.error
        assert second == finished(attack, targets[1])[0]


# Parrot


def parrot_of(folders: Folders, **options: Any) -> Parrot:
    judges = {"adequacy_model": folders.judge(), "fluency_model": folders.judge(seed=1)}
    return Parrot.of(model=folders.t5(), **({"max_tokens": 40} | judges | options))


def chance(folder: str, label: int, *texts: str) -> float:
    """The probability of a label by the model itself, for one text or pair."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        return float(model(**tokenizer(*texts, return_tensors="pt")).logits.softmax(-1)[0, label])


def test_parrot_keeps_what_both_judges_pass_and_ranks_it(folders: Folders) -> None:
    sentence = SENTENCES[0]
    [every] = parrot_of(folders, adequacy=0, fluency=0).answers([sentence])
    assert len(every) > 6
    assert every == sorted(every, key=lambda said: -paraphrasers.edit_distance(sentence, said))
    adequate = [chance(folders.judge(), 1, sentence, said) for said in every]
    fluent = [chance(folders.judge(seed=1), 1, f"Sentence: {said}") for said in every]
    least = [float(np.mean(sorted(row)[3:5])) for row in (adequate, fluent)]
    for bars in ((least[0], 0.0), (0.0, least[1]), (least[0], least[1])):
        expected = [said for said, a, f in zip(every, adequate, fluent, strict=True) if a >= bars[0] and f >= bars[1]]
        assert len(expected) < len(every)
        assert parrot_of(folders, adequacy=bars[0], fluency=bars[1]).answers([sentence]) == [expected]


def test_parrot_end_to_end(folders: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    attack = parrot_of(folders, adequacy=0, fluency=0, beams=4, groups=1, batch=4)
    capfd.readouterr()
    with inputs_of(attack._paraphraser) as read:
        [done] = finished(attack, Target(TEXT))
    assert capfd.readouterr() == ("", "")
    assert sorted(read) == sorted(f"paraphrase: {sentence}" for sentence in SENTENCES)
    assert not done.failed
    assert done == finished(parrot_of(folders, adequacy=0, fluency=0, beams=4, groups=1, batch=2), Target(TEXT))[0]
    network = attack._paraphraser
    for sentence, answers in zip(SENTENCES, attack.answers(SENTENCES), strict=True):
        beams = network.model.generate(
            **network.encode([f"paraphrase: {sentence}"], 40), num_beams=4, num_return_sequences=4, early_stopping=True,
            max_new_tokens=40,
        )  # fmt: skip
        assert set(answers) == set(network.decode(beams))


def test_parrot_without_a_fit_paraphrase_fails(folders: Folders) -> None:
    attack = parrot_of(folders, adequacy=1.0, fluency=1.0)
    assert attack.answers(SENTENCES[:2]) == [[], []]
    assert finished(attack, Target(TEXT))[0].error == "no usable answer for 6 of 6 sentences"


def test_parrot_as_in_the_public_code(folders: Folders) -> None:
    """Where nothing passes, the best of what did not is taken: a sentence never stays as it is."""
    attack = parrot_of(folders, adequacy=1.0, fluency=1.0, preset="paper")
    [done] = finished(attack, Target(TEXT))
    assert not done.failed
    assert done.left == 0
    every = attack.answers(["The water, (cold) & clear!"])[0]
    assert every
    for text in every:
        assert text[0] == text[0].upper()
        assert text[-1] in "?."
        assert set(text[:-1]) <= set("abcdefghijklmnopqrstuvwxyz0123456789 ?'-I" + text[0])
    with inputs_of(attack._paraphraser) as read:
        attack.answers(["The water, cold, was clear."])
    assert "," not in read[0]


def test_parrot_of_the_public_code_still_prefers_what_passes(folders: Folders) -> None:
    [every] = parrot_of(folders, adequacy=1.0, fluency=1.0, preset="paper").answers(SENTENCES[:1])
    [lenient] = parrot_of(folders, adequacy=0.0, fluency=0.0, preset="paper").answers(SENTENCES[:1])
    assert every == lenient
    source = f"paraphrase: {SENTENCES[0]}"
    plain = [text[:1].lower() + text[1:].rstrip(".") for text in every]
    chances = [chance(folders.judge(), 1, source, text) for text in plain]
    least = float(np.mean(sorted(chances)[2:4]))
    [some] = parrot_of(folders, adequacy=least, fluency=1.0, preset="paper").answers(SENTENCES[:1])
    assert some == [text for text, passing in zip(every, chances, strict=True) if passing >= least]
    assert Parrot.of(preset="paper").settings["max_tokens"] == 92


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ((), 1),
        (("entailment", "neutral", "contradiction"), 0),
        (("CONTRADICTION", "ENTAILMENT"), 1),
        (("a", "b", "c"), 2),
    ],
)
def test_the_label_that_means_the_same(folders: Folders, labels: tuple[str, ...], place: int) -> None:
    assert paraphrasers._entailment(_seq2seq.load_network(folders.judge(*labels), "cpu", _seq2seq.CLASSIFIER)) == place


def plain_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y)))
    return row[-1]


@given(st.text("abc ", max_size=12), st.text("abc ", max_size=12))
@settings(max_examples=200, deadline=None)
def test_difference_is_the_normalised_edit_distance(a: str, b: str) -> None:
    assert paraphrasers.edit_distance(a, b) == pytest.approx(plain_distance(a, b) / max(1, len(a), len(b)))


# DIPPER


def test_dipper_rewrites_window_by_window(folders: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    attack = Dipper(model=folders.t5())
    capfd.readouterr()
    with inputs_of(attack._network) as read:
        [done] = finished(attack, Target(TEXT, 3))
    assert capfd.readouterr() == ("", "")
    assert done.text == " ".join(SAID)
    assert (done.error, done.tries, done.rejected) == ("", 1, ())
    assert read == [dipper_input(" ".join(SAID[:i]), sentence) for i, sentence in enumerate(SENTENCES)]
    tokenizer = attack._network.tokenizer
    assert done.tokens == sum(len(tokenizer(said)["input_ids"]) for said in SAID)


def test_windows_of_several_sentences_end_with_their_line(folders: Folders) -> None:
    a, b, c, d, e, f = SENTENCES
    attack = Dipper(model=folders.t5(), sentences=2, tries=1, max_tokens=120, lexical=80, order=40)
    with inputs_of(attack._network) as read:
        finished(attack, Target(f"{a} {b}\n{c} {d} {e}\n\n```\nx\n```\n{f}"))
    assert [text.partition(" <sent> ")[2] for text in read] == [f"{w} </sent>" for w in (f"{a} {b}", f"{c} {d}", e, f)]
    assert all(text.startswith("lexical = 20, order = 60 ") for text in read)


def test_what_was_written_before_is_cut_from_the_left(folders: Folders) -> None:
    attack = Dipper(model=folders.t5(), max_tokens=75)
    with inputs_of(attack._network) as read:
        [done] = finished(attack, Target(TEXT))
    tokenizer = attack._network.tokenizer
    sizes = [len(tokenizer(text)["input_ids"]) for text in read]
    assert max(sizes) <= 75
    assert max(sizes) > 68  # no more than needed
    for text, sentence in zip(read, SENTENCES, strict=True):
        before, _, window = text.removeprefix("lexical = 40, order = 100").partition("<sent>")
        assert window == f" {sentence} </sent>"
        assert before.strip() in done.text
    assert "Monday" in read[1]
    assert "Monday" not in read[5]


def test_a_window_beyond_the_limit_loses_its_end(folders: Folders) -> None:
    attack = Dipper(model=folders.t5(), max_tokens=45, tries=1)
    with inputs_of(attack._network) as read:
        finished(attack, Target(" ".join(SENTENCES[0].rstrip(".") for _ in range(5)) + "."))
    assert len(attack._network.tokenizer(read[0])["input_ids"]) == 45
    assert read[0].startswith("lexical = 40, order = 100 <sent>")


UNSURE = 25
"""Training steps after which the outputs of a model still vary, so that effects of random numbers are visible."""


def test_dipper_does_not_depend_on_the_batch(folders: Folders) -> None:
    texts = [" ".join(SENTENCES[:3]), SENTENCES[0], " ".join(SENTENCES[4:]), SENTENCES[3]]
    targets = [Target(text, seed) for seed, text in enumerate(texts)]
    options: dict[str, Any] = {"model": folders.t5(UNSURE), "top_p": 0.95, "max_tokens": 40, "tries": 2}
    alone = finished(Dipper(**options, batch=1), *targets)
    assert finished(Dipper(**options, batch=3), *targets) == alone
    said = {done.text or done.rejected for done in alone}
    assert len(said) == len(targets)
    assert alone != finished(Dipper(**options, batch=3), *[Target(target.text, target.seed + 9) for target in targets])


def test_targets_are_taken_no_sooner_than_needed(folders: Folders) -> None:
    taken: list[int] = []

    def targets() -> Iterator[Target]:
        for i in range(5):
            taken.append(i)
            yield Target(TEXT, i)

    next(Dipper(model=folders.t5(), batch=2).run(targets()))
    assert taken == [0, 1]


def test_flawed_rewrites_are_tried_again_then_fail(folders: Folders) -> None:
    attack = Dipper(model=folders.t5(0), max_tokens=24, tries=2, top_p=1.0)
    failed, blank = finished(attack, Target(TEXT, 5), Target("```\nx\n```", 6))
    assert failed.failed
    assert failed.text == ""
    assert failed.tries == 2
    assert len(failed.rejected) == len(set(failed.rejected)) == 2  # each try is another
    flaw = failed.rejected[-1].partition(":")[0]
    assert failed.error == f"{flaw} after 2 tries"
    assert failed.tokens > 0
    with pytest.raises(AttackError, match=f"dipper failed: {flaw} after 2 tries"):
        attack(TEXT, 5)
    assert blank.failed


def test_a_second_try_may_do(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the text that did not pass is rewritten again."""
    flaws = iter(["tags", "", ""])
    monkeypatch.setattr(dipper, "text_flaw", lambda answer, original: next(flaws))
    attack = Dipper(model=folders.t5())
    first, second = finished(attack, Target(TEXT, 1), Target(SENTENCES[0], 2))
    assert (first.text, first.tries) == (" ".join(SAID), 2)
    assert first.rejected == (f"tags: {' '.join(SAID)[:80]}",)
    assert (second.text, second.tries, second.rejected) == (SAID[0], 1, ())
    monkeypatch.undo()
    assert first.tokens == 2 * finished(attack, Target(TEXT, 1))[0].tokens


def test_dipper_as_in_the_public_code(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but an empty text is tried again, and a window's rewrite has at most 100 tokens."""
    attack = Dipper.of(model=folders.t5(0), top_p=1.0, preset="paper")
    assert attack.settings["max_new_tokens"] == 100
    assert attack.settings["tries"] == 5
    [done] = finished(attack, Target(SENTENCES[0], 5))
    assert not done.failed
    assert done.tries == 1
    assert done.tokens <= 100
    attack = Dipper.of(model=folders.t5(), preset="paper")
    decode = attack._network.decode
    lost = {SAID[2]}
    monkeypatch.setattr(
        _seq2seq.Network, "decode", lambda self, rows: ["" if text in lost else text for text in decode(rows)]
    )
    [done] = finished(attack, Target(TEXT))
    assert done.text == " ".join(said for said in SAID if said != SAID[2])
    assert (done.tries, done.rejected) == (1, ("empty",))
    lost |= set(SAID)
    [done] = finished(attack, Target(SENTENCES[0]))
    assert (done.error, done.rejected) == ("empty after 5 tries", ("empty",) * 5)


def test_a_lost_sentence_is_a_flaw(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = Dipper(model=folders.t5(), tries=1)
    decode = attack._network.decode
    monkeypatch.setattr(
        _seq2seq.Network, "decode", lambda self, rows: ["" if text == SAID[2] else text for text in decode(rows)]
    )
    assert finished(attack, Target(TEXT))[0].error == "empty after 1 tries"


def test_the_words_before_a_window_are_read_from_the_end(folders: Folders) -> None:
    """Those of a long text cannot all fit, and to read them for every window would take quadratic time."""
    attack = Dipper(model=folders.t5(), max_tokens=60)
    last = [Piece(" ", said) for said in SAID * 4] + [Piece(" ", "")] * 3
    poisoned: list[Any] = [None] * 5 + last
    assert attack._input(poisoned, SENTENCES[0]) == attack._input(last, SENTENCES[0])
    assert SAID[-1] in attack._input(poisoned, SENTENCES[0])


@pytest.mark.parametrize("top_p", [0.2, 0.75, 1.0])
def test_the_nucleus_is_that_of_transformers(top_p: float) -> None:
    scores = 2 * torch.randn((8, 50), generator=torch.Generator().manual_seed(0))
    expected = transformers.TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores
    torch.testing.assert_close(dipper.nucleus(scores, top_p), expected)


def test_draws_follow_the_law_of_the_nucleus() -> None:
    scores = torch.linspace(2, -2, 10)[None].expand(20_000, -1)
    sampler = dipper._Nucleus(0.75, range(20_000))
    expected = dipper.nucleus(scores[:1], 0.75).softmax(-1)[0]
    for _ in range(2):
        shares = torch.bincount(sampler(None, scores).argmax(-1), minlength=10) / 20_000
        torch.testing.assert_close(shares, expected, atol=0.015, rtol=0)


# What they share


@pytest.mark.parametrize(
    ("attack", "options", "says"),
    [
        (Dipper, {"lexical": 50}, "lexical diversity must be one of"),
        (Dipper, {"order": 120}, "order diversity must be one of"),
        (Dipper, {"sentences": 0}, "at least 1"),
        (Dipper, {"top_p": 0.0}, "top_p"),
        (Parrot, {"beams": 10, "groups": 3}, "cannot be divided into 3 groups"),
        (Parrot, {"adequacy": 1.5}, "probabilities"),
        (Parrot, {"diversity_penalty": float("nan")}, "diversity penalty must be at least 0 and finite, not nan"),
        (Pegasus, {"repetition_penalty": float("inf")}, "repetition penalty must be above 0 and finite, not inf"),
        (Parrot, {"batch": 0}, "at least 1"),
        (Pegasus, {"beams": 0}, "at least 1"),
        (Pegasus, {"temperature": 0.0}, "above 0"),
    ],
)
def test_settings_that_cannot_be(attack: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(AttackError, match=says):
        attack(**options)


def test_a_missing_library_is_named(folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for library, extra in (("transformers", "transformers"), ("torch", "transformers")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            with pytest.raises(MissingExtra, match=rf"transformers is not installed.*alimark\[{extra}\]"):
                _seq2seq.load_network(str(tmp_path), "cpu")
    for library in ("sentencepiece", "google.protobuf"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            with pytest.raises(MissingExtra, match=rf"{library} is not installed.*alimark\[lab\]"):
                _seq2seq._load("AutoModelForSeq2SeqLM", folders.t5(), "cpu", "", False)
            _seq2seq._load("AutoModelForSequenceClassification", folders.judge(), "cpu", "", False)  # needs neither


def test_the_tokenizer_may_lie_elsewhere(folders: Folders, tmp_path: Path) -> None:
    """The tokenizer comes from the folder of the model if it is there, otherwise from the place in the settings."""
    bare = tmp_path / "bare"
    bare.mkdir()
    tiny.save_t5(bare, dipper_pairs()[:1], steps=1, words=False)
    with pytest.raises(ModelError, match="holds no tokenizer"):
        _seq2seq.load_network(str(bare), "cpu")
    attack = Dipper(model=str(bare), tokenizer=folders.t5(), max_tokens=40, tries=1)
    with inputs_of(attack._network) as read:
        finished(attack, Target(SENTENCES[0]))
    assert read == [dipper_input("", SENTENCES[0])]
    assert Dipper(model=folders.t5(), tokenizer="no/such")(SENTENCES[0]) == SAID[0]


def test_a_hubs_tokenizer_has_no_weights(folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The weights beside DIPPER's tokenizer would be 45 GB."""
    hub = pytest.importorskip("huggingface_hub")
    asked: list[Any] = []

    def snapshot(repo: str, **options: Any) -> Path:
        asked.append((repo, options))
        return tmp_path

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    bare = tmp_path / "bare"
    bare.mkdir()
    tiny.save_t5(bare, dipper_pairs()[:1], steps=1, words=False)
    with pytest.raises(ModelError, match="holds no tokenizer"):
        Dipper(model=str(bare))(TEXT)
    [(repo, options)] = asked
    assert repo == "google/t5-v1_1-xxl"
    assert not any(fnmatch(file, p) for p in options["allow_patterns"] for file in ("a.safetensors", "a.bin"))
    assert any(fnmatch("spiece.model", p) for p in options["allow_patterns"])


def test_on_a_cpu_everything_is_float32(folders: Folders, tmp_path: Path) -> None:
    model = transformers.T5ForConditionalGeneration.from_pretrained(folders.t5(), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    network = _seq2seq.load_network(str(tmp_path), "cpu", tokenizer=folders.t5(), bfloat16=True)
    assert {weights.dtype for weights in network.model.parameters()} == {torch.float32}
    assert not network.model.training


def test_a_model_is_loaded_once_and_let_go(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = _seq2seq._load

    def counted(kind: str, source: str, *more: Any) -> Any:
        loads.append(source)
        return load(kind, source, *more)

    monkeypatch.setattr(_seq2seq, "_load", counted)
    attacks = [Pegasus(model=folders.pegasus(), beams=beams, device="cpu") for beams in (1, 2, 3, 4)]
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(lambda attack: id(attack._network), attacks))) == 1
    assert loads == [folders.pegasus()]
    attacks.clear()
    gc.collect()
    assert not any(name[1:3] == (folders.pegasus(), "cpu") for name in list(_seq2seq._in_use))


def test_devices_that_are_not_there(folders: Folders) -> None:
    with pytest.raises(AttackError, match="is not a device"):
        Pegasus(model=folders.pegasus(), device="toaster")(TEXT)
    if not torch.cuda.is_available():
        with pytest.raises(AttackError, match="no GPU on this machine"):
            Pegasus(model=folders.pegasus(), device="cuda")(TEXT)
