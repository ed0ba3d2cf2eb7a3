"""Diverse beam search (Vijayakumar et al., 2016) on an encoder-decoder model: groups of beams that shun each other's words.

Each group is a beam search of its own. At every step the groups choose in turn, and a group pays a penalty for a token as
often as beams of the groups before it go on with that token at this step. What was paid stays in a beam's score.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_NEVER = -1e9  # the score of a beam that is not there yet


class Beam(NamedTuple):
    """A finished row of tokens, without the one that every row starts with and with the one that ends it."""

    tokens: tuple[int, ...]
    score: float
    """The sum of log-probabilities, penalties taken off, by the length to the power of the model's length penalty."""
    group: int


class _Open(NamedTuple):
    """A row that goes on."""

    tokens: tuple[int, ...]
    score: float
    row: int
    """The place, among the rows of the step before, of the one that it continues."""


class _Rules(NamedTuple):
    width: int
    """Beams of a group."""
    groups: int
    penalty: float
    length_penalty: float
    ends: frozenset[int]
    max_tokens: int


@dataclass(slots=True)
class _Lane:
    """One group's search for one sentence."""

    sentence: int
    group: int
    open: list[_Open]
    done: list[Beam] = field(default_factory=list)
    over: bool = False

    def take(self, found: list[tuple[float, int, int]], rules: _Rules, length: int) -> None:
        """Goes on with the best of what was found, given as (score, row, token) and best first.

        An end counts where it is among the best `width`; behind those stand enough that do not end. With `width` rows done
        the search is over, though a row that goes on might still beat them.
        """
        last = length == rules.max_tokens
        going: list[_Open] = []
        for rank, (score, row, token) in enumerate(found):
            ends = token in rules.ends
            if rank < rules.width and (ends or last):
                self.done.append(
                    Beam((*self.open[row].tokens, token), score / length**rules.length_penalty, self.group)
                )
            if not ends and len(going) < rules.width:
                going.append(_Open((*self.open[row].tokens, token), score, row))
        self.done = sorted(self.done, key=lambda beam: -beam.score)[: rules.width]
        self.open = going
        self.over = last or len(self.done) == rules.width


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
    """The `beams` rows that the model writes for each row of a padded batch, best first."""
    import torch

    rules = _rules(model, beams, groups, penalty, max_tokens)
    lanes = [
        _Lane(sentence, group, _first(rules.width)) for sentence in range(len(input_ids)) for group in range(groups)
    ]
    found: list[list[Beam]] = [[] for _ in input_ids]
    with torch.inference_mode():
        decoder = _Decoder(model, input_ids, attention_mask, beams)
        for length in range(1, max_tokens + 1):
            _choose(lanes, decoder.scores(), rules, length)
            stay = [i for i, lane in enumerate(lanes) if not lane.over]
            for lane in lanes:
                found[lane.sentence] += lane.done if lane.over else []
            if not stay:
                break
            rows = [i * rules.width + beam.row for i in stay for beam in lanes[i].open]
            shrunk = len(stay) < len(lanes)
            lanes = [lanes[i] for i in stay]
            decoder.go_on(rows, [beam.tokens[-1] for lane in lanes for beam in lane.open], shrunk)
    return [sorted(row, key=lambda beam: -beam.score) for row in found]


def _rules(model: Any, beams: int, groups: int, penalty: float, max_tokens: int) -> _Rules:
    settings = model.generation_config
    ends = settings.eos_token_id if settings.eos_token_id is not None else []
    length_penalty = 1.0 if settings.length_penalty is None else settings.length_penalty
    ids = frozenset(ends if isinstance(ends, list) else [ends])
    return _Rules(beams // groups, groups, penalty, length_penalty, ids, max_tokens)


def _first(width: int) -> list[_Open]:
    """All rows begin alike: only one of them counts, or every beam would go on the same way."""
    return [_Open((), _NEVER if i else 0.0, i) for i in range(width)]


def _choose(lanes: list[_Lane], scores: torch.Tensor, rules: _Rules, length: int) -> None:
    """One step of every lane; `scores` holds the log-probabilities behind its rows."""
    import torch

    table = scores.view(len(lanes), rules.width, -1)
    chosen = torch.zeros((1 + max(lane.sentence for lane in lanes), table.shape[2]), device=scores.device)
    for group in range(rules.groups):
        mine = [i for i, lane in enumerate(lanes) if lane.group == group]
        if not mine:
            continue
        sentences = [lanes[i].sentence for i in mine]
        so_far = torch.tensor([[beam.score for beam in lanes[i].open] for i in mine], device=scores.device)
        sums = table[mine] - rules.penalty * chosen[sentences][:, None] + so_far[:, :, None]
        count = min((1 + max(1, len(rules.ends))) * rules.width, sums[0].numel())
        best, places = sums.flatten(1).topk(count)
        for i, row, at in zip(mine, best.tolist(), places.tolist(), strict=True):
            pairs = [divmod(place, table.shape[2]) for place in at]
            lanes[i].take([(score, *pair) for score, pair in zip(row, pairs, strict=True)], rules, length)
        said = [(lanes[i].sentence, beam.tokens[-1]) for i in mine for beam in lanes[i].open]
        where = torch.tensor(said, device=scores.device).T
        chosen.index_put_((where[0], where[1]), torch.ones(len(said), device=scores.device), accumulate=True)


class _Decoder:
    """The model's decoder over all rows of all lanes, with what it remembers of them."""

    def __init__(self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, beams: int) -> None:
        import torch
        from transformers import DynamicCache, EncoderDecoderCache

        start = model.generation_config.decoder_start_token_id
        if start is None:
            start = model.config.decoder_start_token_id
        read = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
        self._model = model
        self._read = read.last_hidden_state.repeat_interleave(beams, 0)
        self._mask = attention_mask.repeat_interleave(beams, 0)
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self._tokens = torch.full((len(self._mask), 1), start, device=input_ids.device)

    def scores(self) -> torch.Tensor:
        """The log-probabilities of every row's next token."""
        from transformers.modeling_outputs import BaseModelOutput

        said = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._read),
            attention_mask=self._mask,
            decoder_input_ids=self._tokens,
            past_key_values=self._cache,
            use_cache=True,
        )
        found: torch.Tensor = said.logits[:, -1].float().log_softmax(-1)
        return found

    def go_on(self, rows: list[int], tokens: list[int], shrunk: bool) -> None:
        """Continues these rows by these tokens. What was read moves only where rows left: within a sentence it is the same."""
        import torch

        index = torch.tensor(rows, device=self._mask.device)
        self._cache.self_attention_cache.reorder_cache(index)
        if shrunk:
            self._cache.cross_attention_cache.reorder_cache(index)
            self._read, self._mask = self._read[index], self._mask[index]
        self._tokens = torch.tensor(tokens, device=self._mask.device)[:, None]
