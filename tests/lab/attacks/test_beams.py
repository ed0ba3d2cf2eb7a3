from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from alimark.lab.attacks._beams import Beam, diverse_beams  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

VOCABULARY, END, STEPS = 14, 1, 9


def random_t5(seed: int, length_penalty: float = 1.0) -> Any:
    """A random T5 in double precision, so that rounding never decides between two beams."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(0.4)  # less certain: certain models give ties
        model.lm_head.weight[END] *= 2
    model.generation_config.length_penalty = length_penalty
    return model


def batch(seed: int) -> tuple[Any, Any]:
    """Four sentences of different lengths, padded."""
    ids = torch.randint(2, VOCABULARY, (4, 7), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(7)[None] < torch.tensor([7, 3, 5, 6])[:, None]).long()
    return ids * mask, mask


def theirs(model: Any, ids: Any, mask: Any, beams: int) -> list[list[tuple[int, ...]]]:
    """The beams of transformers, without the first token and the padding."""
    rows = model.generate(
        input_ids=ids, attention_mask=mask, num_beams=beams, num_return_sequences=beams, early_stopping=True,
        do_sample=False, max_new_tokens=STEPS,
    )  # fmt: skip
    cut = [tuple(row[1 : 1 + (row.index(END, 1) if END in row[1:] else len(row))]) for row in rows.tolist()]
    return [cut[i : i + beams] for i in range(0, len(cut), beams)]


def rows_of(found: Sequence[Beam]) -> list[tuple[int, ...]]:
    return [beam.tokens for beam in found]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("beams", "length_penalty"), [(1, 1.0), (3, 1.0), (4, 0.6), (6, 2.0)])
def test_one_group_is_the_beam_search_of_transformers(seed: int, beams: int, length_penalty: float) -> None:
    model, (ids, mask) = random_t5(seed, length_penalty), batch(seed)
    found = diverse_beams(model, ids, mask, beams=beams, max_tokens=STEPS)
    if beams == 1:  # transformers treats one beam as greedy decoding, which is the same
        model.generation_config.length_penalty = 1.0
    assert [rows_of(row) for row in found] == theirs(model, ids, mask, beams)


def plainly(model: Any, ids: Any, beams: int, groups: int, penalty: float) -> list[Beam]:
    """A plain implementation for one sentence without padding and without a KV cache."""
    width = beams // groups
    running: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] for _ in range(groups)]
    done: list[list[Beam]] = [[] for _ in range(groups)]
    for length in range(1, STEPS + 1):
        chosen: Counter[int] = Counter()
        for group in range(groups):
            if len(done[group]) == width:
                continue
            ways = []
            for tokens, score in running[group]:
                said = model(input_ids=ids[None], decoder_input_ids=torch.tensor([[0, *tokens]]), use_cache=False)
                chances = said.logits[0, -1].log_softmax(-1).tolist()
                ways += [((*tokens, i), score + chances[i] - penalty * chosen[i]) for i in range(VOCABULARY)]
            ways.sort(key=lambda way: -way[1])
            best = ways[: 2 * width]
            over = [way for way in best[:width] if way[0][-1] == END or length == STEPS]
            done[group] += [Beam(tokens, score / length, group) for tokens, score in over]
            done[group] = sorted(done[group], key=lambda beam: -beam.score)[:width]
            running[group] = [way for way in best if way[0][-1] != END][:width]
            chosen.update(tokens[-1] for tokens, _ in running[group])
    return sorted((beam for row in done for beam in row), key=lambda beam: -beam.score)


@pytest.mark.parametrize(("seed", "beams", "groups", "penalty"), [(0, 4, 2, 2.0), (1, 6, 3, 0.7), (2, 3, 3, 1.3)])
def test_groups_with_a_penalty(seed: int, beams: int, groups: int, penalty: float) -> None:
    model, (ids, mask) = random_t5(seed), batch(seed)
    found = diverse_beams(model, ids, mask, beams=beams, groups=groups, penalty=penalty, max_tokens=STEPS)
    for i, row in enumerate(found):
        with torch.inference_mode():
            expected = plainly(model, ids[i, : int(mask[i].sum())], beams, groups, penalty)
        assert rows_of(row) == rows_of(expected)
        assert [beam.group for beam in row] == [beam.group for beam in expected]
        assert [beam.score for beam in row] == pytest.approx([beam.score for beam in expected], abs=1e-4)


def test_pegasus_has_the_same_search() -> None:
    """Another architecture, whose decoder takes its positions from the KV cache."""
    config = transformers.PegasusConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32,
        init_std=0.5, forced_eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model, (ids, mask) = transformers.PegasusForConditionalGeneration(config).double().eval(), batch(0)
    found = diverse_beams(model, ids, mask, beams=4, max_tokens=STEPS)
    assert [rows_of(row) for row in found] == theirs(model, ids, mask, 4)
