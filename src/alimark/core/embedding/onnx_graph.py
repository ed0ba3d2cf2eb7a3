"""Writes a sentence encoder as an ONNX graph, directly from its upstream safetensors.

The graph is hand-written, node by node, for two architectures: BERT, and MPNet with its relative position bias. The other way,
an export from torch, would need torch in the core install, and exported files were seen to give other vectors than torch
(docs/decisions/0002-detection-without-torch.md and 0005-hand-written-code.md). The graph uses the fused operators of
onnxruntime, so that it needs no optimisation when it is loaded, and gives the same vectors with optimisation and without.

The int8 form of a graph multiplies 8-bit integers: weights are rounded here, each column with its own scale, and onnxruntime
rounds the inputs of each multiplication while it runs. Everything else is float32 as in the other form. The inputs of the
feed-forward products are divided by the largest number of each token first: onnxruntime rounds with one scale for the whole
batch, and in all-mpnet-base-v2 a few tokens have inputs 40 times as large as the others, which would be rounded too coarsely.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.files import replacing, write_whole
from alimark.core.models.folders import read_json, read_modules
from alimark.errors import ModelError

VERSION = 3
"""The version of the graph, which is part of the name of the cached file. Increase it whenever the graph changes."""

GraphPrecision = Literal["float32", "int8"]  # the numbers that a graph multiplies
PRECISIONS: tuple[GraphPrecision, ...] = get_args(GraphPrecision)

GRAPH_FILE = "model.onnx"
_WEIGHTS_FILE = "weights.bin"
_PAGE = 4096  # tensors start on a page, so that onnxruntime maps them instead of copying them
_FLOAT, _INT32 = 1, 6  # the numbers of these types in the ONNX format
MPNET_PADDING = 1  # fixed by the architecture, whichever padding token the configuration names
_MPNET_POSITION_RANGE = 128
_LARGEST = 63
"""The largest rounded weight, of 7 bits: with 8, CPUs without VNNI instructions overflow, as they add products in 16 bits."""

Float32s = NDArray[np.float32]


class UnknownArchitecture(ModelError):
    """A model that this module cannot write as a graph."""


@dataclass(frozen=True, slots=True)
class GraphRecipe:
    """Everything that the graph depends on, apart from the weights."""

    architecture: Literal["bert", "mpnet"]
    layers: int
    heads: int
    epsilon: float
    pooling: Literal["mean", "cls"]
    hidden: int
    max_tokens: int
    padding: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([VERSION, asdict(self)], sort_keys=True).encode()).hexdigest()[:8]


def read_recipe(folder: Path) -> GraphRecipe:
    """Reads the configuration of the model in `folder`; raises UnknownArchitecture where no graph can be written for it."""
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnknownArchitecture(f"cannot write {' + '.join(kinds)} as a graph")
    transformer, pooling = modules[0][1], modules[1][1]
    _refuse_text_rewrites(folder, transformer)
    config = read_json(transformer / "config.json")
    try:
        return _recipe(config, _read_pooling(pooling), _read_max_tokens(transformer, config))
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{transformer / 'config.json'} lacks {error}; fetch the model again") from error


def _recipe(config: dict[str, Any], pooling: Literal["mean", "cls"], max_tokens: int) -> GraphRecipe:
    architecture = config.get("model_type")
    if architecture not in ("bert", "mpnet"):
        raise UnknownArchitecture(f"cannot write a model of type {architecture!r} as a graph")
    if (
        config.get("hidden_act", "gelu") != "gelu"
        or config.get("position_embedding_type", "absolute") != "absolute"
        or config.get("is_decoder", False)
        or config["hidden_size"] % config["num_attention_heads"]
    ):
        raise UnknownArchitecture(f"cannot write this variant of {architecture} as a graph")
    return GraphRecipe(
        architecture=architecture,
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        epsilon=config["layer_norm_eps"],
        pooling=pooling,
        hidden=config["hidden_size"],
        max_tokens=max_tokens,
        padding=MPNET_PADDING if architecture == "mpnet" else config.get("pad_token_id") or 0,
    )


def _refuse_text_rewrites(folder: Path, transformer: Path) -> None:
    """Raises UnknownArchitecture for models that change the text before the tokenizer; torch runs these."""
    settings = folder / "config_sentence_transformers.json"
    if settings.exists() and read_json(settings).get("default_prompt_name"):
        raise UnknownArchitecture("cannot write a model with a default prompt as a graph")
    settings = transformer / "sentence_bert_config.json"
    if settings.exists() and read_json(settings).get("do_lower_case"):
        raise UnknownArchitecture("cannot write a model that lowercases its input as a graph")


def _read_pooling(folder: Path) -> Literal["mean", "cls"]:
    config = read_json(folder / "config.json")
    modes = config.get("pooling_mode") or [  # newer files name the mode, older ones hold one flag for each
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value
    ]
    if modes in ("mean", ["mean"]):
        return "mean"
    if modes in ("cls", ["cls"]):
        return "cls"
    raise UnknownArchitecture(f"cannot write the pooling {modes!r} as a graph")


def pools_prefix(folder: Path, name: str) -> bool:
    """Whether the tokens of an instruction count in the pooled vector, as they do unless the model says otherwise.

    The published INSTRUCTOR models do not say so in their files; sentence-transformers knows them by name, as this does.
    """
    if "instructor" in Path(name).name.lower():
        return False
    poolings = [module for kind, module in read_modules(folder) if kind == "Pooling"]
    return all(read_json(module / "config.json").get("include_prompt", True) for module in poolings)


def _read_max_tokens(transformer: Path, config: dict[str, Any]) -> int:
    """The maximum number of tokens of a text: the number in the configuration, and at most the positions of the model."""
    positions = config.get("max_position_embeddings", 512)
    if config.get("model_type") == "mpnet":  # its positions start after that of the padding token
        positions -= MPNET_PADDING + 1
    stated = [positions]
    for name, field in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        if (transformer / name).exists() and (length := read_json(transformer / name).get(field)):
            stated.append(int(length))
            break
    return int(min(stated))


def position_buckets(distances: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
    """MPNet's buckets of relative positions (key minus query): exact for small distances, logarithmic for large ones."""
    half = buckets // 2
    exact = half // 2
    far = np.abs(distances)
    # In float32, as in training: exact powers of two must fall on the same side of the bucket boundary.
    ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
    scaled = ratio / np.float32(math.log(_MPNET_POSITION_RANGE / exact)) * np.float32(half - exact)
    large = np.minimum(exact + scaled.astype(np.int64), half - 1)
    return np.where(distances > 0, half, 0) + np.where(far < exact, far, large)


class TensorFile(Protocol):
    """An open file of tensors, as safetensors returns it."""

    def keys(self) -> list[str]: ...
    def get_tensor(self, name: str) -> NDArray[np.generic]: ...


class EncoderWeights:
    """The upstream tensors as float32, by their names in the encoder without prefix."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        stem = "embeddings.word_embeddings.weight"
        prefixes = [name.removesuffix(stem) for name in file.keys() if name.endswith(stem)]  # noqa: SIM118
        if len(prefixes) != 1:
            raise UnknownArchitecture("the weights are not named as those of an encoder")
        self._prefix = prefixes[0]

    def __getitem__(self, name: str) -> Float32s:
        try:
            tensor = self._file.get_tensor(self._prefix + name)
        except Exception as error:  # the library raises its own type both for a missing name and for bfloat16
            raise UnknownArchitecture(f"cannot use the tensor {name} ({error})") from error
        return np.ascontiguousarray(tensor, dtype=np.float32)

    def linear(self, *names: str) -> tuple[Float32s, Float32s]:
        """The weights (input dimension first) and biases of layers with the same input, concatenated."""
        weight = np.concatenate([self[f"{name}.weight"] for name in names])
        return np.ascontiguousarray(weight.T), np.concatenate([self[f"{name}.bias"] for name in names])


class _Graph:
    """Collects the nodes and tensors of the graph; the bytes of large tensors are written to the file of weights at once."""

    def __init__(
        self, recipe: GraphRecipe, weights: EncoderWeights, sink: IO[bytes], precision: GraphPrecision
    ) -> None:
        from onnx import helper

        self.recipe = recipe
        self.precision = precision
        self.weights = weights
        self._helper = helper
        self._sink = sink
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Adds a node and returns the name of its output."""
        output = f"{kind}_{len(self.nodes)}"
        self.nodes.append(
            self._helper.make_node(kind, list(inputs), [output], name=output, domain=domain, **attributes)
        )
        return output

    def split(self, hidden: str, count: int) -> list[str]:
        """Adds a node that cuts the last dimension into equal parts, and returns their names."""
        outputs = [f"Split_{len(self.nodes)}_{part}" for part in range(count)]
        self.nodes.append(self._helper.make_node("Split", [hidden], outputs, name=outputs[0], axis=-1))
        return outputs

    def fused(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with a fused operator of onnxruntime."""
        return self.op(kind, *inputs, domain="com.microsoft", **attributes)

    def constant(self, *values: int | float, scalar: bool = False) -> str:
        """Adds a small tensor to the graph itself; integers are int64, as the shape operators require."""
        from onnx import numpy_helper

        array = np.array(values[0] if scalar else values)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        name = f"constant_{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def product(self, hidden: str, weight: Float32s) -> str:
        """Adds a multiplication with a matrix of weights, input dimension first."""
        if self.precision == "float32":
            return self.op("MatMul", hidden, self.weight(weight))
        # Small integers with a scale for each column; their products are near to the weights.
        scales = np.maximum(np.abs(weight).max(axis=0), np.float32(1e-12)) / np.float32(_LARGEST)
        rounded = np.rint(weight / scales).astype(np.int8)
        return self.fused("DynamicQuantizeMatMul", hidden, self.weight(rounded), self.weight(scales.astype(np.float32)))

    def scaled_product(self, hidden: str, weight: Float32s) -> str:
        """Adds a multiplication like `product`, in int8 with a scale for each token.

        A token with large numbers then does not make the rounding of the other tokens coarser.
        """
        if self.precision == "float32":
            return self.product(hidden, weight)
        # Two reductions take less time than one of the absolute values, which would be another tensor of the same size.
        highest = self.op("ReduceMax", hidden, axes=[-1], keepdims=1)
        lowest = self.op("ReduceMin", hidden, axes=[-1], keepdims=1)
        scale = self.op("Max", highest, self.op("Neg", lowest), self.constant(1e-12))
        return self.op("Mul", self.product(self.op("Div", hidden, scale), weight), scale)

    def weight(self, array: Float32s | NDArray[np.int8]) -> str:
        """Adds a tensor whose bytes lie in the file of weights."""
        from onnx import TensorProto

        self._sink.write(b"\0" * (-self._sink.tell() % _PAGE))
        place = {"location": _WEIGHTS_FILE, "offset": self._sink.tell(), "length": array.nbytes}
        name = f"weight_{len(self.tensors)}"
        kind = TensorProto.INT8 if array.dtype == np.int8 else TensorProto.FLOAT
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        self._sink.write(array.tobytes())
        return name


@contextmanager
def open_weights(safetensors: Path) -> Iterator[EncoderWeights]:
    """Opens the tensors of an encoder; raises UnknownArchitecture where they are another model's."""
    from safetensors import safe_open

    try:
        tensors = safe_open(safetensors, framework="numpy")
    except Exception as error:  # the exception type of the library is not part of its documented interface
        raise ModelError(f"{safetensors} cannot be read ({error}); fetch the model again") from error
    with tensors as file:
        yield EncoderWeights(file)


def write_graph(recipe: GraphRecipe, safetensors: Path, folder: Path, precision: GraphPrecision = "float32") -> None:
    """Writes `model.onnx` and its weights into `folder`. A file appears when it is complete.

    Raises UnknownArchitecture where the tensors are not those of the architecture.
    """
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    with open_weights(safetensors) as weights, replacing(folder / _WEIGHTS_FILE) as sink:
        model = _build(_Graph(recipe, weights, sink, precision))
    # The graph is written last, so that its weights exist wherever it exists. Two writers write the same bytes.
    write_whole(folder / GRAPH_FILE, onnx.ModelProto.SerializeToString(model))


def _build(graph: _Graph) -> Any:
    from onnx import TensorProto, helper

    if graph.recipe.architecture == "bert":
        hidden, bias = _bert_embeddings(graph), ""
    else:
        hidden, bias = _mpnet_embeddings(graph), _mpnet_bias(graph)
    for layer in range(graph.recipe.layers):
        hidden = _layer(graph, layer, hidden, bias)
    _unit(graph, _pool(graph, hidden))
    graph.nodes[-1].output[0] = "vectors"
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "length"]) for name in ("ids", "mask")]
    outputs = [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", graph.recipe.hidden])]
    return helper.make_model(
        helper.make_graph(graph.nodes, graph.recipe.architecture, inputs, outputs, graph.tensors),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,  # the lowest version with these operators, so that older releases of onnxruntime can read it
        producer_name="alimark",
    )


def _length(graph: _Graph) -> str:
    return graph.op("Gather", graph.op("Shape", "ids"), graph.constant(1))


def _bert_embeddings(graph: _Graph) -> str:
    # A text is one segment, so the vector of the segment is added to all position vectors here.
    places = graph.weights["embeddings.position_embeddings.weight"][: graph.recipe.max_tokens]
    places = places + graph.weights["embeddings.token_type_embeddings.weight"][0]
    words = graph.op("Gather", graph.weight(graph.weights["embeddings.word_embeddings.weight"]), "ids")
    zero = graph.constant(0)
    here = graph.op("Slice", graph.weight(places), zero, _length(graph), zero)
    return _norm(graph, "embeddings.LayerNorm", graph.op("Add", words, here))


def _mpnet_embeddings(graph: _Graph) -> str:
    # A padding token that is written in a text ("<pad>") has no position: the other tokens are counted.
    padding = graph.op("Cast", graph.constant(MPNET_PADDING), to=_INT32)
    real = graph.op("Cast", graph.op("Not", graph.op("Equal", "ids", padding)), to=_INT32)
    rank = graph.op("Mul", graph.op("CumSum", real, graph.constant(1, scalar=True)), real)
    words = graph.op("Gather", graph.weight(graph.weights["embeddings.word_embeddings.weight"]), "ids")
    places = graph.weight(graph.weights["embeddings.position_embeddings.weight"])
    here = graph.op("Gather", places, graph.op("Add", rank, padding))
    return _norm(graph, "embeddings.LayerNorm", graph.op("Add", words, here))


def _mpnet_bias(graph: _Graph) -> str:
    """The bias of shape (1, heads, length, length), from a table with the value for each distance."""
    table = graph.weights["encoder.relative_attention_bias.weight"]
    reach = graph.recipe.max_tokens - 1
    buckets = position_buckets(np.arange(-reach, reach + 1), len(table))
    step, zero = graph.constant(1, scalar=True), graph.constant(0, scalar=True)
    length = graph.op("Squeeze", _length(graph))
    steps = graph.op("Range", zero, length, step)
    across = graph.op("Unsqueeze", steps, graph.constant(0))
    down = graph.op("Unsqueeze", steps, graph.constant(1))
    rows = graph.op("Add", graph.op("Sub", across, down), graph.constant(reach))
    values = graph.op("Gather", graph.weight(np.ascontiguousarray(table[buckets])), rows)
    return graph.op("Unsqueeze", graph.op("Transpose", values, perm=[2, 0, 1]), graph.constant(0))


def _norm(graph: _Graph, name: str, hidden: str) -> str:
    scale, shift = graph.weight(graph.weights[f"{name}.weight"]), graph.weight(graph.weights[f"{name}.bias"])
    return graph.op("LayerNormalization", hidden, scale, shift, epsilon=graph.recipe.epsilon)


class LayerNames(NamedTuple):
    """The upstream names of the parts of a layer's attention."""

    qkv: tuple[str, str, str]
    out: str
    norm: str


LAYER_NAMES = {
    "bert": LayerNames(
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output.dense",
        "attention.output.LayerNorm",
    ),
    "mpnet": LayerNames(
        ("attention.attn.q", "attention.attn.k", "attention.attn.v"), "attention.attn.o", "attention.LayerNorm"
    ),
}


def _layer(graph: _Graph, layer: int, hidden: str, bias: str) -> str:
    stem = f"encoder.layer.{layer}."
    names = LAYER_NAMES[graph.recipe.architecture]
    qkv, qkv_bias = graph.weights.linear(*(stem + name for name in names.qkv))
    attended = _attention(graph, hidden, (qkv, qkv_bias), bias)
    weight, shift = graph.weights.linear(stem + names.out)
    hidden = _add_norm(graph, stem + names.norm, graph.product(attended, weight), shift, hidden)
    weight, shift = graph.weights.linear(f"{stem}intermediate.dense")
    wide = graph.fused("BiasGelu", graph.scaled_product(hidden, weight), graph.weight(shift))
    weight, shift = graph.weights.linear(f"{stem}output.dense")
    return _add_norm(graph, f"{stem}output.LayerNorm", graph.scaled_product(wide, weight), shift, hidden)


def _attention(graph: _Graph, hidden: str, qkv: tuple[Float32s, Float32s], bias: str) -> str:
    """Attention of all heads; `bias` is the name of MPNet's position bias, or empty."""
    weight, shift = qkv
    if graph.precision == "float32":
        inputs = (hidden, graph.weight(weight), graph.weight(shift), "mask", "", bias)[: 6 if bias else 4]
        return graph.fused("Attention", *inputs, num_heads=graph.recipe.heads)
    # The fused operator with integers knows no position bias, so the multiplication stands alone, for both architectures.
    parts = graph.split(graph.product(hidden, weight), 3)
    inputs = (*parts, graph.weight(shift), "mask", bias)[: 6 if bias else 5]
    return graph.fused("MultiHeadAttention", *inputs, num_heads=graph.recipe.heads)


def _add_norm(graph: _Graph, name: str, product: str, shift: Float32s, skip: str) -> str:
    """LayerNorm(skip + product + shift); `name` is that of the LayerNorm upstream."""
    # The fused SkipLayerNormalization of onnxruntime 1.31 takes about three times as long on a CPU as these operators.
    linear = graph.op("Add", product, graph.weight(shift))
    return _norm(graph, name, graph.op("Add", linear, skip))


def _pool(graph: _Graph, hidden: str) -> str:
    if graph.recipe.pooling == "cls":
        return graph.op("Gather", hidden, graph.constant(0, scalar=True), axis=1)
    mask = graph.op("Unsqueeze", graph.op("Cast", "mask", to=_FLOAT), graph.constant(-1))
    total = graph.op("ReduceSum", graph.op("Mul", hidden, mask), graph.constant(1), keepdims=0)
    count = graph.op("ReduceSum", mask, graph.constant(1), keepdims=0)
    return graph.op("Div", total, graph.op("Max", count, graph.constant(1e-9)))


def _unit(graph: _Graph, vector: str) -> None:
    length = graph.op("ReduceL2", vector, axes=[-1], keepdims=1)
    graph.op("Div", vector, graph.op("Max", length, graph.constant(1e-12)))
