"""Diverse beam search (Vijayakumar et al., 2016) for encoder-decoder models.

The beams are divided into groups, and each group is a separate beam search. At every step the groups choose tokens in turn.
The score of a token is reduced by a penalty for each beam of an earlier group that chose the same token at this step, and the
penalty stays in the score of the beam.

It is hand-written because `transformers` has removed diverse beam search: its `generate` now downloads code for it from the
model hub and runs it, and this project runs no code from the hub (docs/decisions/0005-hand-written-code.md). With one group
the result is that of the beam search of `transformers`, which a test checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_IMPOSSIBLE = -1e9  # the score of a hypothesis that must not be continued


class Beam(NamedTuple):
    """A finished sequence of tokens, without the start token and with the end token."""

    tokens: tuple[int, ...]
    score: float  # the sum of the log-probabilities minus the penalties, divided by length ** length_penalty
    group: int


class _Hypothesis(NamedTuple):
    """A sequence of tokens that is not finished."""

    tokens: tuple[int, ...]
    score: float
    parent: int  # the index of the hypothesis that it continues, among those of its search at the step before


@dataclass(slots=True)
class _GroupSearch:
    """The beam search of a group for a sentence."""

    sentence: int
    group: int
    hypotheses: list[_Hypothesis]
    finished: list[Beam] = field(default_factory=list)
    done: bool = False

    def advance(
        self, candidates: list[tuple[float, int, int]], width: int, ends: frozenset[int], divisor: float, last: bool
    ) -> None:
        """Continues with the best candidates, given as (score, hypothesis, token), the best first.

        A candidate with a token of `ends` is finished where it is among the best `width`, as are all at the `last` step; the
        list is long enough to hold `width` others. The search is done as soon as `width` beams are finished, even if an open
        hypothesis might become better. divisor: turns a sum of log-probabilities into the score of a beam.
        """
        hypotheses: list[_Hypothesis] = []
        for rank, (score, parent, token) in enumerate(candidates):
            tokens = (*self.hypotheses[parent].tokens, token)
            if rank < width and (token in ends or last):
                self.finished.append(Beam(tokens, score / divisor, self.group))
            if token not in ends and len(hypotheses) < width:
                hypotheses.append(_Hypothesis(tokens, score, parent))
        self.finished = sorted(self.finished, key=lambda beam: -beam.score)[:width]
        self.hypotheses = hypotheses
        self.done = last or len(self.finished) == width


def diverse_beams(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    beams: int,
    groups: int = 1,
    penalty: float = 0.0,
    max_tokens: int,
) -> list[list[Beam]]:
    """The `beams` sequences that the model generates for each row of a padded batch, the best first."""
    import torch

    config, width = model.generation_config, beams // groups
    ends = config.eos_token_id if config.eos_token_id is not None else []
    end_tokens = frozenset(ends if isinstance(ends, list) else [ends])
    length_penalty = 1.0 if config.length_penalty is None else config.length_penalty
    # Empty hypotheses. All but the first are impossible, or all beams would be the same.
    initial = [_Hypothesis((), _IMPOSSIBLE if i else 0.0, i) for i in range(width)]
    searches = [_GroupSearch(i, group, initial) for i in range(len(input_ids)) for group in range(groups)]
    results: list[list[Beam]] = [[] for _ in input_ids]
    with torch.inference_mode():
        decoder = _Decoder(model, input_ids, attention_mask, beams)
        for length in range(1, max_tokens + 1):
            table = decoder.log_probabilities().view(len(searches), width, -1)
            for search, candidates in _best_candidates(searches, table, penalty, len(end_tokens)):
                search.advance(candidates, width, end_tokens, length**length_penalty, length == max_tokens)
            open_searches = [i for i, search in enumerate(searches) if not search.done]
            for search in searches:
                results[search.sentence] += search.finished if search.done else []
            if not open_searches:
                break
            rows = [i * width + beam.parent for i in open_searches for beam in searches[i].hypotheses]
            fewer = len(open_searches) < len(searches)
            searches = [searches[i] for i in open_searches]
            decoder.advance(rows, [beam.tokens[-1] for search in searches for beam in search.hypotheses], fewer)
    return [sorted(row, key=lambda beam: -beam.score) for row in results]


def _best_candidates(
    searches: list[_GroupSearch], table: torch.Tensor, penalty: float, end_tokens: int
) -> Iterator[tuple[_GroupSearch, list[tuple[float, int, int]]]]:
    """Each search with its best candidates for the next token, group after group: a search must be advanced by them at once.

    table: the log-probabilities of the next token for each hypothesis of each search. end_tokens: how many there are.
    """
    import torch

    width, vocabulary = table.shape[1:]
    counts = torch.zeros((1 + max(search.sentence for search in searches), vocabulary), device=table.device)
    for group in sorted({search.group for search in searches}):
        members = [i for i, search in enumerate(searches) if search.group == group]
        sentences = [searches[i].sentence for i in members]
        so_far = torch.tensor([[beam.score for beam in searches[i].hypotheses] for i in members], device=table.device)
        sums = table[members] - penalty * counts[sentences][:, None] + so_far[:, :, None]
        best, places = sums.flatten(1).topk(min((1 + max(1, end_tokens)) * width, sums[0].numel()))
        for i, scores, flat in zip(members, best.tolist(), places.tolist(), strict=True):
            pairs = [divmod(place, vocabulary) for place in flat]  # hypothesis and token
            yield searches[i], [(score, *pair) for score, pair in zip(scores, pairs, strict=True)]
        chosen = [(searches[i].sentence, beam.tokens[-1]) for i in members for beam in searches[i].hypotheses]
        index = torch.tensor(chosen, device=table.device).T
        counts.index_put_((index[0], index[1]), torch.ones(len(chosen), device=table.device), accumulate=True)


class _Decoder:
    """Runs the model's decoder on all hypotheses of all searches, with a KV cache."""

    def __init__(self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, beams: int) -> None:
        import torch
        from transformers import DynamicCache, EncoderDecoderCache

        start = model.generation_config.decoder_start_token_id
        if start is None:
            start = model.config.decoder_start_token_id
        encoded = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
        self._model = model
        self._encoded = encoded.last_hidden_state.repeat_interleave(beams, 0)
        self._mask = attention_mask.repeat_interleave(beams, 0)
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self._tokens = torch.full((len(self._mask), 1), start, device=input_ids.device)

    def log_probabilities(self) -> torch.Tensor:
        """The log-probabilities of the next token of every hypothesis."""
        from transformers.modeling_outputs import BaseModelOutput

        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded),
            attention_mask=self._mask,
            decoder_input_ids=self._tokens,
            past_key_values=self._cache,
            use_cache=True,
        )
        log_probabilities: torch.Tensor = output.logits[:, -1].float().log_softmax(-1)
        return log_probabilities

    def advance(self, rows: list[int], tokens: list[int], fewer: bool) -> None:
        """Continues these rows by these tokens.

        What the encoder read is the same for all hypotheses of a sentence, so it is reordered only where searches ended.
        """
        import torch

        index = torch.tensor(rows, device=self._mask.device)
        self._cache.self_attention_cache.reorder_cache(index)
        if fewer:
            self._cache.cross_attention_cache.reorder_cache(index)
            self._encoded, self._mask = self._encoded[index], self._mask[index]
        self._tokens = torch.tensor(tokens, device=self._mask.device)[:, None]
