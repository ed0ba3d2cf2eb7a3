"""The chat attack: its prompt, the checks of answers, and what it does with answers that do not pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from alimark.attacks import Attacked, Target, load_attack
from alimark.attacks.chat import Chat
from alimark.attacks.settings import CHAT_PROMPTS, CHAT_SYSTEM
from alimark.errors import AttackError, ContextFull, LLMError
from alimark.llm.base import Draw, Ended, Request, Sampling, StopCondition

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
        self, tell: Tell, *, max_concurrency: int = 1, preferred_batch: int = 1, ended: Ended = "model"
    ) -> None:
        self.tell, self.max_concurrency, self.preferred_batch, self.ended = (
            tell,
            max_concurrency,
            preferred_batch,
            ended,
        )
        self.single_draw_batching = max_concurrency, preferred_batch
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
    found = dict(Chat(engine=llm, **settings).run(Target(text, i) for i, text in enumerate(texts)))  # type: ignore[arg-type]
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
    together_made = dict(
        Chat(engine=Teller(tell, max_concurrency=max_concurrency, preferred_batch=preferred_batch)).run(
            Target(text, 0) for text in texts
        )
    )
    assert [together_made[i] for i in range(9)] == alone


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
