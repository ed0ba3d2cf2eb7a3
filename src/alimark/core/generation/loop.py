"""The generation loop. One step samples, parses, embeds, chooses and appends, for several texts together.

A step asks the model once for the candidates of all texts that are sampled alike, and the embedder once for all new sentences.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice

from alimark.core._util.arrays import Floats
from alimark.core.embedding.base import Embedder
from alimark.core.generation.candidates import FirstSentence
from alimark.core.generation.session import Session
from alimark.core.llm.base import LLM, Draw, Request, StopCondition
from alimark.errors import AlimarkError, ContextFull, LLMError

Drawn = list[Draw] | LLMError
"""The draws of a text, or why the model gave none."""
Parsed = tuple[Session, list[str]]
"""A session, and the units that it needs embedded."""


_FAULTS = 3
"""After so many texts in a row for which the model fails, it is not asked for the others: it is probably dead."""


class Loop:
    """Steps texts with one model and, where text is marked, one embedder."""

    def __init__(self, llm: LLM, embedder: Embedder | None) -> None:
        self.llm, self.embedder = llm, embedder

    def step(self, sessions: Sequence[Session]) -> None:
        """One wave of draws for every text; a text whose candidates suffice gets its next sentence."""
        started = time.perf_counter()
        parsed: list[Parsed] = []
        for group in _sampled_alike(sessions):
            parsed += self.parse(group, self.sample(group))
        for (session, _), seen in zip(parsed, self.embed(parsed), strict=True):
            sentence = session.choose(seen)
            if sentence is not None:
                session.append(sentence)
        seconds = time.perf_counter() - started
        for session in sessions:
            session.seconds += seconds / len(sessions)

    def sample(self, group: Sequence[Session]) -> list[Drawn]:
        """Draws a wave for every text of a group in one call of the model; an error for a text that has none.

        Where the call fails, the texts are asked for one by one, so that the error of one does not end the others.
        """
        text = group[0].text
        over = text.code_over if text.in_code else FirstSentence(text.cutter)
        return self._draw(group, [session.request() for session in group], over)

    def _draw(self, group: Sequence[Session], requests: Sequence[Request], over: StopCondition) -> list[Drawn]:
        try:
            draws = self.llm.draw(requests, group[0].settings.sampling, over)
        except ContextFull as full:
            if len(requests) == 1:
                return [full]
            half = len(requests) // 2  # bisect: which of the texts has no room left
            return [*self._draw(group[:half], requests[:half], over), *self._draw(group[half:], requests[half:], over)]
        except LLMError as error:
            return [error] if len(requests) == 1 else self._draw_singly(group, requests, over)
        for request, answer in zip(requests, draws, strict=True):
            if len(answer) != request.count:
                raise AlimarkError(
                    f"{self.llm.name} gave {len(answer)} continuations where {request.count} were asked for"
                )
        return list(draws)

    def _draw_singly(self, group: Sequence[Session], requests: Sequence[Request], over: StopCondition) -> list[Drawn]:
        """Asks for the texts of a group one by one; once several in a row have failed, the others get the last error."""
        drawn: list[Drawn] = []
        for session, request in zip(group, requests, strict=True):
            faults = [answer for answer in drawn[-_FAULTS:] if isinstance(answer, LLMError)]
            dead = len(faults) == _FAULTS and not any(isinstance(fault, ContextFull) for fault in faults)
            drawn += [faults[-1]] if dead else self._draw([session], [request], over)
        return drawn

    def parse(self, group: Sequence[Session], drawn: Sequence[Drawn]) -> list[Parsed]:
        """Cuts the first sentences out of a group's draws; a text without draws ends or fails here."""
        if not group[0].text.in_code:
            drawn = _read(FirstSentence(group[0].text.cutter), drawn)
        parsed: list[Parsed] = []
        for session, draws in zip(group, drawn, strict=True):
            if isinstance(draws, ContextFull):
                session.ended = "context full"
            elif isinstance(draws, LLMError):
                session.error = draws
            else:
                parsed.append((session, session.parse(draws)))
        return parsed

    def embed(self, parsed: Sequence[Parsed]) -> list[dict[str, Floats]]:
        """Embeds all new units in one call; for each text what its rule keeps of its units."""
        units = list(dict.fromkeys(unit for _, wanted in parsed for unit in wanted))
        if not units:
            return [{} for _ in parsed]
        assert self.embedder is not None
        vectors = self.embedder.embed(units)
        rows = {unit: i for i, unit in enumerate(units)}
        return [
            dict(zip(wanted, session.rule.see(vectors[[rows[unit] for unit in wanted]]), strict=True)) if wanted else {}
            for session, wanted in parsed
        ]


def _read(reader: FirstSentence, drawn: Sequence[Drawn]) -> list[Drawn]:
    """Reads the draws of all texts in one call, where the engine has not done so."""
    draws = iter(reader.read([draw for draws in drawn if not isinstance(draws, LLMError) for draw in draws]))
    return [answer if isinstance(answer, LLMError) else list(islice(draws, len(answer))) for answer in drawn]


def _sampled_alike(sessions: Sequence[Session]) -> list[list[Session]]:
    """Texts that one call of the model can hold: same sampling and splitter; a text in a code block is on its own."""
    groups: dict[tuple[object, object], list[Session]] = {}
    for session in sessions:
        kind = id(session) if session.text.in_code else session.text.cutter.identity
        groups.setdefault((session.settings.sampling, kind), []).append(session)
    return list(groups.values())
