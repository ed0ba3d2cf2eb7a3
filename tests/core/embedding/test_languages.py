"""Languages other than English: an embedder from the model hub marks and finds texts in six of them.

The model is made here, with random weights, in the form of the multilingual models on the hub: a BERT encoder whose tokenizer
is a Unigram model over pieces of several scripts. It shows that loading, splitting, marking and detecting work; how well a
real model does is not measured.
"""

import random
from pathlib import Path

import numpy as np
import pytest

import alimark
from alimark.core.embedding.loading import load_embedder
from alimark.core.llm.base import Draw, Request
from tiny_embedders import make_model, write
from watched import Told

PHRASES = {
    "zh": (
        "我的妹妹|店主|那位老师|我们的邻居|一个学生",
        "在河边|昨天下午|在书店里|下雨的时候|早上",
        "买了一本书|看见一只鸟|修好了桥|忘了带钥匙|唱了一首歌",
        "。",
    ),
    "ja": (
        "妹は|店の人は|あの先生は|隣の人は|学生は",
        "川のそばで|昨日の午後|古い本屋で|雨の日に|朝早く",
        "本を買いました|鳥を見ました|橋を直しました|鍵を忘れました|歌を歌いました",
        "。",
    ),
    "ar": (
        "اشترت أختي |رأى البائع |وجد المعلم |نسي جارنا |رسم طالب ",
        "كتابا |طائرا |خريطة قديمة |المفتاح |الجسر ",
        "قرب النهر|أمس|في المكتبة|تحت المطر|صباحا",
        ". ",
    ),
    "hi": (
        "मेरी बहन ने |दुकानदार ने |शिक्षक ने |पड़ोसी ने |छात्र ने ",
        "नदी के पास |कल दोपहर |दुकान में |बारिश में |सुबह ",
        "किताब खरीदी|चिड़िया देखी|पुल बनाया|चाबी खो दी|गीत गाया",
        "। ",
    ),
    "de": (
        "Meine Schwester |Der Händler |Die Lehrerin |Unser Nachbar |Ein Student ",
        "kaufte |fand |zeichnete |vergaß |zeigte ",
        "ein Buch am Fluss|den Vogel gestern|eine alte Karte|den Schlüssel im Regen|die Brücke",
        ". ",
    ),
    "es": (
        "Mi hermana |El dueño |La maestra |Nuestro vecino |Un alumno ",
        "compró |encontró |dibujó |olvidó |mostró ",
        "un libro junto al río|el pájaro ayer|un mapa viejo|la llave bajo la lluvia|el puente",
        ". ",
    ),
}
"""The beginnings, middles and ends of sentences in each language, and how a sentence ends."""


def speaker(language: str) -> Told:
    """Writes random sentences of one language: two, so that the second shows where the first one ends."""
    *parts, end = PHRASES[language]

    def tell(request: Request, number: int) -> Draw:
        chance = random.Random(f"{request.seed} {number} {request.context}")
        sentences = ["".join(chance.choice(part.split("|")) for part in parts) + end for _ in range(2)]
        gap = " " if end.endswith(" ") and not request.context[-1:].isspace() else ""
        return Draw(gap + "".join(sentences), 12, "sentence")

    return Told(tell)


def save_multilingual_tokenizer(folder: Path) -> int:
    """Replace the model's tokenizer by a Unigram model over the words and letters of all languages; return its size."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    phrases = [phrase for parts in PHRASES.values() for part in parts for phrase in part.split("|")]
    words = sorted({word for phrase in phrases for word in phrase.split()})
    letters = sorted({letter for word in words for letter in word})
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = dict.fromkeys(special, 0.0) | {"▁": -9.0} | dict.fromkeys(letters, -9.0) | dict.fromkeys(words, -3.0)
    pieces |= {f"▁{word}": -3.0 for word in words}
    tokenizer = Tokenizer(models.Unigram(list(pieces.items()), unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write(
        folder / "tokenizer_config.json",
        names | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512},
    )
    return len(pieces)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    import transformers

    folder = make_model(tmp_path_factory.mktemp("models") / "tiny-multilingual", "bert", max_tokens=128)
    size = save_multilingual_tokenizer(folder)
    torch.manual_seed(11)
    config = transformers.BertConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=200, pad_token_id=1, initializer_range=0.4,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder, safe_serialization=True)
    return folder


@pytest.fixture(scope="module")
def embedder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> alimark.Embedder:
    """The model by its id on a hub that needs no network."""
    hub = pytest.importorskip("huggingface_hub")

    def snapshot_download(repo: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        assert repo == "someone/tiny-multilingual"
        return str(model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "snapshot_download", snapshot_download)
        patch.setenv("ALIMARK_HOME", str(tmp_path_factory.mktemp("home")))
        return load_embedder("someone/tiny-multilingual")


def test_onnx_gives_the_vectors_of_torch(embedder: alimark.Embedder, model: Path) -> None:
    texts = ["".join(part.split("|")[i % 2] for part in parts[:-1]) for i, parts in enumerate(PHRASES.values())]
    vectors = embedder.embed(texts)
    assert embedder.backend == "onnx"
    assert np.abs(vectors - load_embedder(str(model), backend="torch").embed(texts)).max() < 1e-5
    assert np.abs(vectors @ vectors.T - np.eye(len(texts))).max() < 0.99  # texts of unknown pieces alone would be alike


@pytest.mark.parametrize("language", PHRASES)
def test_a_text_is_marked_and_found(embedder: alimark.Embedder, language: str) -> None:
    key = alimark.Key.generate(embedder=embedder, decision="hard", secret=bytes(range(32)))
    mark = alimark.AliMark(key, embedder=embedder)
    text = mark.generate("", speaker(language), sentences=14, candidates=24, seed=5).text
    detection = mark.detect(text)
    assert len(detection.sentences) == 14
    assert detection.verdict().found
    assert detection.warnings == ()  # the languages of the model are not known
    other = alimark.AliMark(key.like(bytes(32)), embedder=embedder)
    assert other.detect(text).p_value > 0.01
