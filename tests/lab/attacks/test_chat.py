"""The chat attack: its prompt, the checks of answers, and what it does with answers that do not pass."""

from collections.abc import Callable, Sequence

import pytest

from alimark.core.llm.base import Draw, DrawEnded, Request, Sampling, StopCondition
from alimark.errors import AttackError, ContextFull, LLMError
from alimark.lab.attacks import Attacked, Target, load_attack
from alimark.lab.attacks.chat import CHAT_PROMPTS, CHAT_SYSTEM, Chat

TEXT = (
    "The old sailor sold his boat to a young doctor from the city. Nobody in the village had expected such a thing. "
    "He moved into a small house behind the church and planted beans. Every morning he walked down to the harbour. "
    "The doctor named the boat Maria and painted it green. In the second winter a storm broke its mast."
)
GOOD = (
    "A city doctor, still young, bought the boat of an elderly seaman. The villagers were taken by surprise. He now lived in a "
    "little home at the back of the church, where beans grew, and went to the harbour each day. Maria was the name that the "
    "doctor gave the vessel, and green was its new colour. A gale snapped the mast in its second winter."
)

Tell = Callable[[Request, int], str | Exception]


class Teller:
    """A model whose answer is a function of the request and of how often it was asked before."""

    name = "teller"
    limits: tuple[str, ...] = ()

    def __init__(
        self, tell: Tell, max_concurrency: int = 1, preferred_batch: int = 1, ended: DrawEnded = "model"
    ) -> None:
        self.tell, self.ended = tell, ended
        self.max_concurrency, self.preferred_batch = self.single_draw_batching = max_concurrency, preferred_batch
        self.asked: list[Request] = []
        self.sampling: Sampling | None = None

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        self.sampling = sampling
        rows = []
        for request in requests:
            before = sum(one.messages == request.messages for one in self.asked)
            self.asked.append(request)
            said = self.tell(request, before)
            if isinstance(said, Exception):
                raise said
            rows.append([Draw(said, len(said.split()), self.ended) for _ in range(request.count)])
        return rows


def attacked(llm: Teller, texts: Sequence[str] = (TEXT,), **settings: object) -> list[Attacked]:
    found = dict(Chat.of(engine=llm, **settings).run(Target(text, i) for i, text in enumerate(texts)))
    return [found[i] for i in range(len(texts))]


def test_the_papers_question() -> None:
    llm = Teller(lambda request, _: GOOD)
    assert attacked(llm) == [Attacked(GOOD, tokens=len(GOOD.split()))]
    [request] = llm.asked
    assert [(turn.role, turn.content) for turn in request.messages] == [
        ("system", "You are a helpful assistant to rewrite text."),
        ("user", CHAT_PROMPTS["paper"].format(text=TEXT)),
    ]
    assert request.messages[0].content == CHAT_SYSTEM
    assert llm.sampling == Sampling(1.0, 1.0, 1.0, 1024, may_end=True)


FLAWED = {
    "empty": " ... ",
    "refusal": "I'm sorry, but I cannot help with that request.",
    "tags": GOOD + " </s><pad>",
    "prompt": "Please rewrite the following text. " + GOOD,
    "too short": "A seaman sold his boat to a doctor. Its mast broke.",
    "too long": GOOD + " " + TEXT + " " + GOOD,
    "language": "Un jeune docteur de la ville a acheté le bateau d'un vieux marin, ce qui a surpris tout le village. "
    "Il habite désormais une petite maison derrière l'église, où il plante des haricots chaque matin. "
    "Le docteur a peint le bateau en vert et lui a donné le nom de Maria, puis une tempête a brisé son mât. "
    "Personne ne s'y attendait dans ce village du bord de mer.",
    "unchanged": TEXT,
    "another text": "Computers work with small switches which are either open or closed at any moment. Each of them is tiny. "
    "Engineers put billions together on one plate of silicon. They must keep it cool. Programs tell these switches what to do. "
    "Without programs nothing would happen inside of it at all, and without current even less would happen.",
    "degenerate": "the boat " * 60,
}


@pytest.mark.parametrize(("flaw", "answer"), FLAWED.items(), ids=FLAWED.keys())
def test_a_flawed_answer_is_asked_for_again_and_then_recorded(flaw: str, answer: str) -> None:
    [made] = attacked(Teller(lambda request, before: GOOD if before == 2 else answer))
    assert made.text == GOOD
    assert made.tries == 3
    assert [why.partition(":")[0] for why in made.rejected] == [flaw, flaw]
    llm = Teller(lambda request, before: answer)
    [made] = attacked(llm, tries=3)
    assert made.failed
    assert not made.text
    assert made.error == f"{flaw}, after 3 tries"
    assert len({request.seed for request in llm.asked}) == 3


def test_an_answer_that_is_cut_off() -> None:
    [made] = attacked(Teller(lambda request, before: GOOD, ended="length"), tries=2)
    assert made.error == "unfinished, after 2 tries"


@pytest.mark.parametrize(
    "around",
    ["Here is the rewritten text:\n\n{}", "Sure, here's a rewritten version of the text:\n{}", '"{}"', "```\n{}\n```"],
)
def test_what_stands_around_an_answer_is_taken_off(around: str) -> None:
    [made] = attacked(Teller(lambda request, before: around.format(GOOD)))
    assert made == Attacked(GOOD, tokens=made.tokens)


@pytest.mark.parametrize(("max_concurrency", "preferred_batch"), [(1, 1), (3, 2), (2, 8)])
def test_results_do_not_depend_on_who_is_asked_with_whom(max_concurrency: int, preferred_batch: int) -> None:
    texts = [TEXT.replace("doctor", f"doctor number {i}") for i in range(9)]

    def tell(request: Request, before: int) -> str:
        return f"{GOOD} It was {request.seed}." if request.seed % 3 else ""

    alone = [attacked(Teller(tell), [text])[0] for text in texts]
    llm = Teller(tell, max_concurrency=max_concurrency, preferred_batch=preferred_batch)
    together = dict(Chat(engine=llm).run(Target(text, 0) for text in texts))
    assert [together[i] for i in range(9)] == alone


def test_a_text_too_long_for_the_model_fails_and_the_others_do_not() -> None:
    def tell(request: Request, before: int) -> str | Exception:
        return ContextFull("full") if "giant" in request.messages[1].content else GOOD

    made = attacked(Teller(tell, preferred_batch=4), [TEXT, "giant " + TEXT, TEXT])
    assert [one.failed for one in made] == [False, True, False]
    assert "does not fit" in made[1].error


def test_an_error_that_passes_is_survived_and_one_that_stays_ends_the_run() -> None:
    [made] = attacked(Teller(lambda request, before: GOOD if before == 2 else LLMError("busy")))
    assert made.text == GOOD
    with pytest.raises(LLMError, match="gone"):
        attacked(Teller(lambda request, before: LLMError("gone")), [TEXT] * 5)


def test_texts_are_taken_when_they_are_needed() -> None:
    taken: list[int] = []

    def targets() -> object:
        for i in range(50):
            taken.append(i)
            yield Target(TEXT, i)

    run = Chat(engine=Teller(lambda request, _: GOOD)).run(targets())  # type: ignore[arg-type]
    next(run)
    assert len(taken) < 5


def test_settings() -> None:
    for wrong in ({"tries": 0}, {"temperature": 0}, {"top_p": 2}, {"max_tokens": 0}):
        with pytest.raises(AttackError):
            load_attack("chat", **wrong)
    gpt = load_attack("gpt-3.5")
    assert gpt.settings["llm"].endswith("#gpt-3.5-turbo")
    assert gpt.settings["temperature"] == 1.0
    assert "engine" not in gpt.settings


AGAIN = (
    "An elderly seaman parted with his boat, and a young physician from town became its owner. This surprised the whole "
    "village. The seaman grew beans at his little home by the church and still went to the harbour each morning. Under its "
    "new name Maria, the vessel shone in green. Its mast snapped in a gale of the second winter."
)


def test_prompts_by_name_and_in_your_words() -> None:
    for prompt, start in (
        ("editor", "I wrote the passage below"),
        ("Say {text} in {other} words", f"Say {TEXT} in {{other}} words"),
    ):
        llm = Teller(lambda request, _: GOOD)
        [result] = attacked(llm, prompt=prompt)
        assert result.text == GOOD
        [request] = llm.asked
        assert request.messages[0].content == CHAT_SYSTEM
        assert request.messages[1].content.startswith(start)
        assert TEXT in request.messages[1].content
    assert all(prompt.count("{text}") == 1 for prompt in CHAT_PROMPTS.values())
    with pytest.raises(AttackError, match=r"paper, plain, editor, formal, sentence, or a text with \{text\}"):
        Chat(prompt="papers")


def test_the_papers_prompt_does_not_change() -> None:
    assert CHAT_PROMPTS["paper"] == (
        "Please rewrite the following text, avoiding the use of the same words or phrases as the original text as much as "
        "possible. You are able to merge or split sentences, but must preserve the original meaning:\n\n{text}"
    )
    assert Chat().settings == {
        "llm": "qwen2.5-coder-1.5b", "temperature": 1.0, "top_p": 1.0, "max_tokens": 1024, "tries": 4, "prompt": "paper",
        "rounds": 1, "preset": "",
    }  # fmt: skip


def test_in_the_second_round_the_model_rewrites_its_own_answer() -> None:
    def tell(request: Request, before: int) -> str:
        return AGAIN if GOOD in request.messages[1].content else GOOD

    llm = Teller(tell)
    [result] = attacked(llm, rounds=2)
    assert result == Attacked(AGAIN, tries=2, tokens=len(f"{GOOD} {AGAIN}".split()))
    assert [request.messages[1].content for request in llm.asked] == [
        CHAT_PROMPTS["paper"].format(text=text) for text in (TEXT, GOOD)
    ]
    once = Teller(tell)
    attacked(once)
    assert once.asked[0] == llm.asked[0]
    assert llm.asked[0].seed != llm.asked[1].seed


@pytest.mark.parametrize("back", [TEXT, "A seaman sold his boat.", GOOD])
def test_every_round_is_checked_against_what_it_rewrites_and_against_the_original(back: str) -> None:
    def tell(request: Request, before: int) -> str:
        return back if GOOD in request.messages[1].content else GOOD

    [result] = attacked(Teller(tell), rounds=3, tries=2)
    flaw = "too short" if back.startswith("A seaman") else "unchanged"
    assert result.error == f"round 2: {flaw}, after 2 tries"
    assert not result.text
    assert result.tries == 3
    assert [reason.partition(":")[0] for reason in result.rejected] == [f"round 2, {flaw}"] * 2


def test_a_failed_first_round_is_named_too() -> None:
    [result] = attacked(Teller(lambda request, before: ""), rounds=2, tries=2)
    assert result.error == "round 1: empty, after 2 tries"
    with pytest.raises(AttackError, match="rounds must be at least 1"):
        Chat(rounds=0)


# Sentence by sentence

REWRITES = {
    "The old sailor sold his boat to a young doctor from the city.": "An aged seaman sold a boat to a young city doctor.",
    "Nobody in the village had expected such a thing.": "The whole village was surprised by such a thing.",
    "He moved into a small house behind the church and planted beans.": "He took a house near the church and grew beans.",
    "Every morning he walked down to the harbour.": "Each day began with a walk to the harbour.",
    "The doctor named the boat Maria and painted it green.": "Maria was the boat's name, and the doctor made it green.",
    "In the second winter a storm broke its mast.": "A storm in its second winter snapped the mast.",
}


def sentence_of(request: Request) -> str:
    return request.messages[1].content.rpartition("\n\n")[2]


def by_sentence(llm: Teller, texts: Sequence[str] = (TEXT,), **settings: object) -> list[Attacked]:
    attack = load_attack("chat-sentences", engine=llm, **settings)  # type: ignore[arg-type]
    results = dict(attack.run(Target(text, i) for i, text in enumerate(texts)))
    return [results[i] for i in range(len(texts))]


def test_each_sentence_is_a_request_of_its_own() -> None:
    llm = Teller(lambda request, _: f'"{REWRITES[sentence_of(request)]}"', preferred_batch=4)
    text = TEXT.replace(" He moved", "\n\n- He moved")
    [result] = by_sentence(llm, [text])
    assert result.text == " ".join(REWRITES.values()).replace(" He took", "\n\n- He took")
    assert (result.tries, result.left, result.rejected) == (6, 0, ())
    assert result.tokens == len(" ".join(REWRITES.values()).split())
    assert [request.messages[1].content for request in llm.asked] == [
        CHAT_PROMPTS["sentence"].format(text=sentence) for sentence in REWRITES
    ]
    assert len({request.seed for request in llm.asked}) == 6


def test_a_sentence_without_a_usable_answer_stays() -> None:
    bad = {list(REWRITES)[1]: "I'm sorry, but I cannot help with that.", list(REWRITES)[3]: list(REWRITES)[3]}

    def tell(request: Request, before: int) -> str:
        sentence = sentence_of(request)
        return bad.get(sentence, REWRITES[sentence])

    [result] = by_sentence(Teller(tell), tries=2)
    assert result.error == "no usable answer for 2 of 6 sentences"
    assert [reason.partition(":")[0] for reason in result.rejected] == ["refusal", "refusal", "unchanged", "unchanged"]
    del bad[list(REWRITES)[1]]
    [result] = by_sentence(Teller(tell), tries=2)
    assert list(REWRITES)[3] in result.text
    assert (result.left, result.tries) == (1, 7)


def test_sentences_of_many_texts_share_batches_and_do_not_depend_on_each_other() -> None:
    texts = [TEXT.replace("doctor", f"doctor number {i}") for i in range(7)] + ["", TEXT]

    def tell(request: Request, before: int) -> str:
        return f"Now {sentence_of(request)[:-1]}, number {request.seed}." if request.seed % 3 else ""

    llm = Teller(tell, max_concurrency=2, preferred_batch=8)
    together = by_sentence(llm, texts)
    assert together[7].error == "the text holds no sentence"
    alone = []
    for number, text in enumerate(texts):
        [(_, result)] = load_attack("chat-sentences", engine=Teller(tell)).run([Target(text, number)])
        alone.append(result)
    assert together == alone
    assert together[0].tries > 6


def test_a_model_that_cannot_be_reached_ends_the_run_over_sentences() -> None:
    with pytest.raises(LLMError, match="gone"):
        by_sentence(Teller(lambda request, before: LLMError("gone")))
    [result] = by_sentence(Teller(lambda request, before: ContextFull("full")))
    assert result.error == "no usable answer for 6 of 6 sentences"
    assert result.tries == 6


# What the paper's public code does


@pytest.mark.parametrize("answer", [*list(FLAWED.values())[1:], "Here is the rewritten text:\n\nA boat was sold."])
def test_the_papers_preset_takes_the_first_answer_as_it_is(answer: str) -> None:
    llm = Teller(lambda request, before: answer, ended="length")
    [attack] = attacked(llm, preset="paper")
    assert attack == Attacked(answer.strip(), tokens=len(answer.split()))
    assert llm.sampling == Sampling(1.0, 1.0, 1.0, 512, may_end=True)


def test_the_papers_preset_asks_again_for_nothing_but_an_empty_answer() -> None:
    [attack] = attacked(Teller(lambda request, before: "A boat." if before == 2 else " "), preset="paper")
    assert (attack.text, attack.tries) == ("A boat.", 3)
    [attack] = attacked(Teller(lambda request, before: ""), preset="paper")
    assert attack.error == "empty, after 5 tries"


def test_the_papers_preset_is_recorded_and_a_setting_beside_it_wins() -> None:
    settings = load_attack("chat", preset="paper", max_tokens=768).settings
    assert (settings["preset"], settings["max_tokens"], settings["tries"]) == ("paper", 768, 5)
    assert load_attack("gpt-3.5", preset="paper").settings["max_tokens"] == 512
    with pytest.raises(AttackError, match="chat has no preset 'public'; there is: paper"):
        load_attack("chat", preset="public")


@pytest.mark.parametrize("preset", ["", "paper"])
@pytest.mark.parametrize("text", ["", " \n\t "])
def test_a_text_without_a_sentence_is_not_shown_to_the_model(text: str, preset: str) -> None:
    """It would make one up, and with the paper's preset that would be the rewrite."""
    llm = Teller(lambda request, before: GOOD)
    nothing, something = attacked(llm, [text, TEXT], preset=preset)
    assert nothing == Attacked("", "the text holds no sentence")
    assert something.text == GOOD
    assert len(llm.asked) == 1


@pytest.mark.parametrize("name", ["chat", "chat-sentences"])
def test_half_a_surrogate_pair_is_not_shown_to_the_model(name: str) -> None:
    """Tokenizers cannot read it, and a run over many texts would end there."""
    llm = Teller(lambda request, before: GOOD)
    list(load_attack(name, engine=llm).run([Target(TEXT.replace("boat", "boat \ud800"))]))
    contents = [request.messages[-1].content for request in llm.asked]
    assert any("boat \ufffd" in content for content in contents)
    assert "\ud800" not in "".join(contents)
